// Any legal sizes give a Program that can be proved: models nobody has thought of.

#include "program/compile/random_models.h"

#include <gtest/gtest.h>

#include "program/compile/test_models.h"

namespace megalith::program {
namespace {

TEST(RandomModels, AreCompiledAndProvedForAnyWorkersAndRows) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    Random random(seed);
    const model::Model model = RandomModel(random);
    CompileOptions options = Workers(static_cast<std::int32_t>(random.Between(1, 12)),
                                     static_cast<std::int32_t>(random.Between(1, 20)));
    options.store_slots = static_cast<std::int32_t>(random.Between(1, 6));
    options.num_slots = static_cast<std::int32_t>(random.Between(1, 3));
    if (random.Coin()) options.activation_dtype = DType::kF32;
    if (random.Coin()) {
      options.max_positions = static_cast<std::int32_t>(random.Between(1, 1 << 20));
    }
    const auto verified = Verify(MustCompile(model, options));
    ASSERT_TRUE(verified.has_value()) << "seed " << seed << ": " << verified.error().message;
  }
}

}  // namespace
}  // namespace megalith::program
