#pragma once

// The whole reply as a grammar: reasoning, answer, tool calls and the markers around them, as the
// chat format writes them.

#include "base/result.h"
#include "text/grammar/byte_grammar.h"
#include "text/grammar/reply_format.h"

namespace megalith::text::grammar {

/// Calls a reply may have.
inline constexpr std::uint32_t kMaxToolCalls = 128;

struct ReplyGrammar {
  ByteGrammar grammar;
  StateId in_think = 0;     ///< behind the opening tag of the think element
  StateId in_response = 0;  ///< behind the opening tag of the response element
  StateId ended = 0;        ///< behind the token that ends the reply
};

/// kUsage, kUnsupported: a schema, by path; tool calls without tools. kOutOfRange: too many states.
Result<ReplyGrammar> CompileReply(const ReplyFormat& format);

}  // namespace megalith::text::grammar
