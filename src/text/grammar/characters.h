#pragma once

// Characters as edges over the bytes that spell them.

#include <string>
#include <string_view>

#include "text/grammar/byte_grammar.h"
#include "text/grammar/code_point_dfa.h"

namespace megalith::text::grammar {

/// How a text is written.
enum class Spelling {
  kJson,       ///< between the quotes of a JSON string, escaped only where that is needed
  kRaw,        ///< as it is
  kAttribute,  ///< between the quotes of a tag's attribute
};

/// Adds what reads the texts of `dfa`, each in exactly one spelling, from `from` to `to`.
void AddDfa(GrammarBuilder& builder, StateId from, const CodePointDfa& dfa, Spelling spelling,
            StateId to);

/// One character as it is, valid UTF-8; with kJson none that must be escaped.
void AddPlainCharacter(GrammarBuilder& builder, StateId from, Spelling spelling, StateId to);

/// One character of a JSON string in any escaped form, from behind the backslash.
void AddJsonEscape(GrammarBuilder& builder, StateId from, StateId to);

/// The text as AddDfa would read it. `text`: valid UTF-8.
std::string Spell(std::string_view text, Spelling spelling);

}  // namespace megalith::text::grammar
