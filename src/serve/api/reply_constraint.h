#pragma once

#include <memory>

#include "base/result.h"
#include "engine/generator.h"
#include "serve/service_options.h"
#include "text/chat.h"
#include "text/chat_parser.h"
#include "text/grammar/token_grammar.h"

namespace megalith::serve {

using ReplyGrammarPtr = std::shared_ptr<const text::grammar::TokenGrammar>;

/// The form that a reply must have (response_format, tool_choice, strict tools); null: any.
/// kUnsupported, kUsage, kOutOfRange naming the place in the request.
Result<ReplyGrammarPtr> CompileReplyForm(const ServedModel& model, const text::ChatOptions& options,
                                         bool parallel_tool_calls);

/// The form for one generation whose prompt leaves `start` open; null for no form.
Result<std::shared_ptr<engine::TokenConstraint>> MakeConstraint(ReplyGrammarPtr form,
                                                                text::Channel start);

}  // namespace megalith::serve
