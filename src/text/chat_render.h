#pragma once

// A conversation as token ids in the chat format of Kimi K3 (XTML). Only this renderer emits
// control ids; every text that comes from a message is encoded as ordinary text on its own, so
// marker spellings inside it stay text.

#include <cstddef>
#include <functional>
#include <vector>

#include "base/result.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace megalith::text {

struct RenderedChat {
  std::vector<TokenId> ids;
  /// Beginnings of the prompt that later requests are likely to share, as lengths in ids, strictly
  /// ascending: the end of what stands before the first message that is no system message, and of
  /// each further message.
  std::vector<std::size_t> boundaries;
  /// Assistant turns taken from `ReplayTurn`.
  int num_replayed_turns = 0;
  /// Thinking mode: assistant turns of the history without reasoning. The model expects its
  /// earlier reasoning back and gets silently worse without; worth a line in the log.
  int num_turns_without_reasoning = 0;
};

/// Ids that the model once generated for this assistant message: everything behind the generation
/// prefix, without the stop id. They close the message element, or break off in the reasoning or
/// the answer, which is then closed. nullptr: not known. The ids must stay valid until the next
/// call.
using ReplayTurn = std::function<const std::vector<TokenId>*(const Message&)>;

/// In this order: static tools, thinking effort, the messages, tool choice, response format,
/// generation prefix. The last three stand behind the history so that they do not change the
/// prefix that later requests share. Errors (kUsage, kUnsupported, kOutOfRange) name the message:
/// text that is not valid UTF-8, a tool result whose tool has no name, arguments that are JSON but
/// no object or nested too deeply.
///
/// Text does not always encode to the ids it was generated as. `replay`, if given, is asked for the
/// ids of each assistant message, so that a cached prefix goes on behind it; never while earlier
/// reasoning is left out.
Result<RenderedChat> RenderChat(const Tokenizer& tokenizer, const Conversation& conversation,
                                const ChatOptions& options = {}, const ReplayTurn& replay = {});

}  // namespace megalith::text
