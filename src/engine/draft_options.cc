#include "engine/draft_options.h"

#include <algorithm>
#include <memory>

#include "engine/ngram_drafter.h"

namespace megalith::engine {

DraftProposer MakeNgramProposer() {
  return
      [drafter = std::make_shared<NgramDrafter>()](
          std::span<const std::int32_t> tokens, std::int32_t max_drafts, DraftProposal* proposal) {
        const std::vector<std::int32_t>& held = drafter->tokens();
        const auto same = std::mismatch(held.begin(), held.end(), tokens.begin(), tokens.end());
        drafter->Truncate(same.first - held.begin());
        drafter->Append(tokens.subspan(held.size()));
        const std::int32_t match = drafter->Propose(max_drafts, &proposal->drafts);
        proposal->confidence.assign(proposal->drafts.size(), NgramDrafter::Confidence(match));
      };
}

}  // namespace megalith::engine
