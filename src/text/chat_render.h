#pragma once

// A conversation as token ids in the chat format of Kimi K3 (XTML). Only this renderer emits
// control ids; every text that comes from a message is encoded as ordinary text on its own, so
// marker spellings inside it stay text.

#include <vector>

#include "base/result.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace megalith::text {

struct RenderedChat {
  std::vector<TokenId> ids;
  /// Thinking mode: assistant turns of the history without reasoning. The model expects its
  /// earlier reasoning back and gets silently worse without; worth a line in the log.
  int num_turns_without_reasoning = 0;
};

/// In this order: static tools, thinking effort, the messages, tool choice, response format,
/// generation prefix. The last three stand behind the history so that they do not change the
/// prefix that later requests share. Errors (kUsage, kUnsupported, kOutOfRange) name the message:
/// text that is not valid UTF-8, a tool result whose tool has no name, arguments that are JSON but
/// no object or nested too deeply.
Result<RenderedChat> RenderChat(const Tokenizer& tokenizer, const Conversation& conversation,
                                const ChatOptions& options = {});

}  // namespace megalith::text
