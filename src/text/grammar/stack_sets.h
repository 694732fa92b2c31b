#pragma once

// Where a text stands in a grammar: all stacks that are possible at that point, as one number.
//
// A stack is a list of frames (state, count), one per rule that is open. A set of stacks is kept as
// a sorted list of nodes (state, count, set of stacks below), at most one node per state and count:
// two sets with the same top frame are joined, so a set is never larger than the grammar, however
// many ways there are to read the text so far. Equal sets have the same id.

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/grammar/byte_grammar.h"
#include "text/grammar/symbols.h"
#include "text/vocabulary.h"

namespace megalith::text::grammar {

using StackSetId = std::uint32_t;

/// One thread at a time.
class StackSets {
 public:
  static constexpr StackSetId kDead = 0;   ///< no stack: the text is not possible
  static constexpr StackSetId kFloor = 1;  ///< below the lowest frame

  /// Sets whose steps are remembered, at least, from when this is not large.
  static constexpr std::size_t kRememberedSets = 2'048;

  struct Node {
    StateId state;
    std::uint32_t count;
    StackSetId below;
    friend bool operator==(const Node&, const Node&) = default;
  };

  /// `grammar` must outlive this.
  explicit StackSets(const ByteGrammar& grammar);

  /// At a state of a rule that is open alone.
  StackSetId Start(StateId state);

  /// Behind one more symbol; kDead if it may not come.
  StackSetId Step(StackSetId set, Symbol symbol);

  /// The same for a byte; remembers the answer.
  StackSetId StepByte(StackSetId set, std::uint8_t byte) {
    const std::vector<StackSetId>& row = sets_[set].next;
    if (!row.empty()) {
      const StackSetId known = row[grammar_->byte_class(byte)];
      if (known != kUnknown) return known;
    }
    return FindByteStep(set, byte);
  }

  /// Nodes that can read a symbol.
  std::span<const Node> nodes(StackSetId set) const { return sets_[set].nodes; }

  /// True if any number of characters (or bytes) of the class may come.
  bool HasEndlessText(StackSetId set, TextClass text_class) const {
    return (sets_[set].endless_text >> static_cast<unsigned>(text_class) & 1u) != 0;
  }
  /// The same for any class of a set of them, given as bits.
  bool HasEndlessTextOf(StackSetId set, std::uint8_t classes) const {
    return (sets_[set].endless_text & classes) != 0;
  }
  bool is_free(StackSetId set) const { return sets_[set].is_free; }

  /// True if this has become large (about 10 MB): time for a new one with what is needed of it.
  bool is_large() const {
    return sets_.size() >= kManySets || num_rows_ + kRememberedSets > kMaxRows;
  }

  /// The same set of another StackSets of the same grammar.
  StackSetId CopyFrom(const StackSets& other, StackSetId set);

 private:
  static constexpr StackSetId kUnknown = kNoLimit;
  static constexpr std::size_t kManySets = 32'768;
  /// Rows of known steps that are kept, 1 KiB each at most.
  static constexpr std::size_t kMaxRows = 4'096;
  /// Texts longer than any token are as good as endless.
  static constexpr std::uint32_t kLongText = Vocabulary::kMaxTokenBytes;

  struct Set {
    std::vector<Node> nodes;         // by (state, count)
    std::uint32_t depth = 0;         // frames below the top one
    std::uint32_t endless_text = 0;  // bit: TextClass
    bool is_free = false;
    std::vector<StackSetId> next;  // [num_byte_classes] or empty
  };

  StackSetId Intern(std::vector<Node> nodes);
  StackSetId Join(StackSetId a, StackSetId b);
  void Add(const Node& node);
  void Follow(const Node& node);
  StackSetId FindByteStep(StackSetId set, std::uint8_t byte);
  StackSetId Close();
  StackSetId Copy(const StackSets& other, StackSetId set,
                  std::unordered_map<StackSetId, StackSetId>& copies);

  const ByteGrammar* grammar_;
  std::vector<Set> sets_;
  std::unordered_multimap<std::size_t, StackSetId> by_hash_;
  std::size_t num_rows_ = 0;

  // Of the step being made.
  struct Key {
    StateId state;
    std::uint32_t count;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const {
      return (std::uint64_t{key.state} << 32 | key.count) * 0x9E3779B97F4A7C15u;
    }
  };
  std::vector<Node> reached_;
  std::vector<std::size_t> todo_;                              // indices into reached_
  std::unordered_map<Key, std::size_t, KeyHash> reached_idx_;  // if reached_ is long
};

}  // namespace megalith::text::grammar
