#include "serve/api/reply_constraint.h"

#include <utility>

namespace megalith::serve {
namespace {

/// The engine knows no grammars, the grammar no engine.
class GrammarConstraint : public engine::TokenConstraint {
 public:
  explicit GrammarConstraint(text::grammar::GrammarMatcher matcher)
      : matcher_(std::move(matcher)) {}

  bool Restrict(std::span<std::uint64_t> allowed) override { return matcher_.Restrict(allowed); }
  bool Push(std::int32_t token) override { return matcher_.Push(token); }
  void Pop(std::size_t count) override { matcher_.Pop(count); }
  void Commit() override { matcher_.Commit(); }

 private:
  text::grammar::GrammarMatcher matcher_;
};

}  // namespace

Result<ReplyGrammarPtr> CompileReplyForm(const ServedModel& model, const text::ChatOptions& options,
                                         bool parallel_tool_calls) {
  const auto format = text::grammar::FindReplyFormat(options, parallel_tool_calls);
  if (!format) return ReplyGrammarPtr();
  if (model.token_trie == nullptr) {
    return Fail(ErrorCode::kUnsupported,
                "response_format, tool_choice: the tokenizer of this model has no control tokens, "
                "so the form of a reply cannot be enforced");
  }
  return text::grammar::TokenGrammar::Compile(*format, model.token_trie);
}

Result<std::shared_ptr<engine::TokenConstraint>> MakeConstraint(ReplyGrammarPtr form,
                                                                text::Channel start) {
  if (form == nullptr) return std::shared_ptr<engine::TokenConstraint>();
  MEGALITH_ASSIGN_OR_RETURN(text::grammar::GrammarMatcher matcher,
                            text::grammar::GrammarMatcher::Create(std::move(form), start));
  return std::make_shared<GrammarConstraint>(std::move(matcher));
}

}  // namespace megalith::serve
