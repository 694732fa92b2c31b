// megalith chat: a conversation in the terminal.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli.h"
#include "commands.h"
#include "console.h"
#include "default_model.h"
#include "drafting.h"
#include "engine/generate.h"
#include "interrupt.h"
#include "line_reader.h"
#include "loading.h"
#include "model/config.h"
#include "sampling_options.h"
#include "text/chat_parser.h"
#include "text/chat_render.h"
#include "text/generation_ids.h"
#include "text/utf8.h"

namespace megalith::apps {
namespace {

constexpr std::int64_t kDefaultContext = 8192;
constexpr char kCommands[] =
    "/reset begins a new conversation, /exit (or Ctrl-D) leaves; Ctrl-C stops an answer\n";

struct Options {
  std::string model;
  LoadOptions load;
  std::string system;
  std::string effort = "max";
  std::int64_t context = 0;
  std::int64_t max_tokens = 0;
  bool no_thinking = false;
  // What the model's makers recommend.
  DraftChoice draft;
  kernels::SamplingOptions sampling = {.temperature = 1.0f, .top_p = 0.95f};
};

text::Effort ParseEffort(const std::string& name) {
  if (name == "low") return text::Effort::kLow;
  return name == "high" ? text::Effort::kHigh : text::Effort::kMax;
}

/// Shows reasoning apart from the answer: dimmed on a terminal, in its own paragraph anywhere.
class Display {
 public:
  Display() : styled_(isatty(STDOUT_FILENO) == 1) {}

  void Show(const text::ChatEvent& event) {
    const bool reasoning = event.kind == text::ChatEvent::Kind::kReasoning;
    if (!reasoning && event.kind != text::ChatEvent::Kind::kContent) {
      if (event.kind == text::ChatEvent::Kind::kToolCallBegin) {
        Put("\n[the model calls the tool {}; chat offers no tools]\n", event.text);
      }
      return;
    }
    if (reasoning != in_reasoning_) {
      if (in_reasoning_) Put("{}\n\n", styled_ ? "\033[0m" : "");
      if (reasoning) Put("{}", styled_ ? "\033[2m" : "(thinking) ");
      in_reasoning_ = reasoning;
    }
    Put("{}", event.text);
    std::fflush(stdout);
  }
  void End() {
    if (in_reasoning_ && styled_) Put("\033[0m");
    Put("\n");
    std::fflush(stdout);
    in_reasoning_ = false;
  }

 private:
  bool styled_;
  bool in_reasoning_ = false;
};

class Chat {
 public:
  Chat(const Options& options, const Cli& cli, engine::DraftOptions drafting,
       engine::Engine& engine, text::Tokenizer tokenizer, std::vector<std::int32_t> stop_ids)
      : options_(options),
        cli_(cli),
        drafting_(std::move(drafting)),
        engine_(engine),
        tokenizer_(std::move(tokenizer)),
        stop_ids_(std::move(stop_ids)),
        sequence_(engine, 0) {
    Begin();
  }

  Status Run() {
    const bool is_terminal = isatty(STDIN_FILENO) == 1;
    if (!cli_.common.quiet) Note("{}", kCommands);
    CatchInterruptsAtPrompt();
    LineReader reader(STDIN_FILENO);
    Status last_failure;
    std::string line;
    while (true) {
      if (is_terminal) Put("> ");
      std::fflush(stdout);
      const LineReader::Outcome outcome = reader.Read(line);
      if (TerminationRequested()) return Fail(ErrorCode::kCancelled, "chat: ended on request");
      if (outcome == LineReader::Outcome::kInterrupted) {
        Note("\n{}", kCommands);
        continue;
      }
      if (outcome == LineReader::Outcome::kEnd || line == "/exit") break;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      if (line == "/reset") {
        Begin();
      } else if (line.front() == '/') {
        Note("there is no command {}\n{}", line, kCommands);
      } else if (const Status status = Answer(line); !status) {
        // The conversation goes on without this turn: a message too long, invalid UTF-8.
        conversation_.pop_back();
        Note("megalith: error: {}\n", status.error().message);
        if (status.error().code == ErrorCode::kInternal || !engine_.JobStatus()) return status;
        last_failure = status;
      }
      if (TerminationRequested()) return Fail(ErrorCode::kCancelled, "chat: ended on request");
    }
    if (is_terminal) {
      Put("\n");
      return {};
    }
    return last_failure;  // a script must see that a question went unanswered
  }

 private:
  void Begin() {
    conversation_.clear();
    if (!options_.system.empty()) {
      conversation_.push_back(text::Message::System(options_.system));
    }
  }

  Status Answer(const std::string& line) {
    conversation_.push_back(text::Message::User(line));
    text::ChatOptions chat;
    chat.thinking = !options_.no_thinking;
    chat.effort = ParseEffort(options_.effort);
    MEGALITH_ASSIGN_OR_RETURN(const text::RenderedChat prompt,
                              text::RenderChat(tokenizer_, conversation_, chat));
    MEGALITH_ASSIGN_OR_RETURN(const text::ControlTokens control, tokenizer_.FindControlTokens());
    text::ChatParserOptions parse;
    parse.start = text::FindOpenChannel(tokenizer_, control, prompt.ids);
    parse.stop_ids = stop_ids_;
    MEGALITH_ASSIGN_OR_RETURN(text::ChatParser parser,
                              text::ChatParser::Create(tokenizer_, std::move(parse)));

    // Each answer gets its own Ctrl-C; what came at the prompt is over.
    if (!TerminationRequested()) cli_.cancel->Reset();
    engine::GenerateOptions generate;
    generate.sampling = options_.sampling;
    generate.drafting = drafting_;
    generate.stop_ids = stop_ids_;
    generate.cancel = cli_.cancel;
    generate.max_tokens = options_.max_tokens > 0 ? options_.max_tokens : engine_.max_positions();
    text::ChatReplyBuilder reply;
    Display display;
    const auto show = [&](const std::vector<text::ChatEvent>& events) {
      for (const text::ChatEvent& event : events) {
        display.Show(event);
        reply.Add(event);
      }
    };
    MEGALITH_ASSIGN_OR_RETURN(
        const engine::GenerateResult result,
        engine::Generate(sequence_, prompt.ids, generate, [&](std::int32_t token) {
          std::vector<text::ChatEvent> events;
          static_cast<void>(parser.Push(token, events));  // the token came from the model
          show(events);
          return std::ferror(stdout) == 0;
        }));
    std::vector<text::ChatEvent> rest;
    const bool cut = result.finish_reason == engine::FinishReason::kLength;
    const text::FinishReason reason = parser.Finish(cut, rest);
    show(rest);
    display.End();
    conversation_.push_back(std::move(reply).Build(reason).ToMessage());
    Report(result);
    return {};
  }

  void Report(const engine::GenerateResult& result) const {
    if (cli_.common.quiet) return;
    const auto rate = [](std::size_t tokens, double seconds) {
      return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
    };
    const std::size_t run = result.prompt_tokens - result.reused_tokens;
    Note(
        "[{}; prompt {} tokens, {} of them reused, {:.1f} tok/s; answer {} tokens, {:.1f} "
        "tok/s]\n",
        engine::FinishReasonName(result.finish_reason), result.prompt_tokens, result.reused_tokens,
        rate(run, result.prompt_seconds), result.ids.size(),
        rate(result.ids.size() - 1, result.decode_seconds));
    if (const std::string drafts = DraftSummary(result.drafting); !drafts.empty()) {
      Note("[{}]\n", drafts);
    }
  }

  const Options& options_;
  const Cli& cli_;
  engine::DraftOptions drafting_;
  engine::Engine& engine_;
  text::Tokenizer tokenizer_;
  std::vector<std::int32_t> stop_ids_;
  engine::Sequence sequence_;
  text::Conversation conversation_;
};

Status RunChat(const Options& options, const Cli& cli) {
  MEGALITH_RETURN_IF_ERROR(kernels::CheckSampling(options.sampling));
  if (text::FindInvalidUtf8(options.system)) {
    return Fail(ErrorCode::kUsage, "--system: valid UTF-8 expected");
  }
  MEGALITH_ASSIGN_OR_RETURN(const std::string directory, ResolveModel(options.model));
  MEGALITH_ASSIGN_OR_RETURN(const model::Config config, model::ReadConfig(directory));
  MEGALITH_ASSIGN_OR_RETURN(text::Tokenizer tokenizer,
                            text::Tokenizer::Load(directory, config.model.vocab_size));
  MEGALITH_ASSIGN_OR_RETURN(std::vector<std::int32_t> stop_ids,
                            text::FindStopIds(directory, tokenizer));
  MEGALITH_ASSIGN_OR_RETURN(Drafting drafting,
                            ResolveDrafting(options.draft, directory, config.model));
  drafting.Report();
  engine::EngineOptions load;
  load.drafter = drafting.drafter;
  load.max_drafts = drafting.options.max_drafts;
  load.max_positions = static_cast<std::int32_t>(
      options.context > 0 ? options.context
                          : std::min(kDefaultContext, config.model.max_position_embeddings));
  MEGALITH_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine,
                            LoadEngine(directory, cli, options.load, std::move(load)));
  return Chat(options, cli, std::move(drafting.options), *engine, std::move(tokenizer),
              std::move(stop_ids))
      .Run();
}

}  // namespace

void RegisterChat(CLI::App& app, Cli& cli) {
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      AddCommand(app, cli, "chat",
                 "Talk to a model: history kept, reasoning shown apart, Ctrl-C stops the answer",
                 "megalith chat\n"
                 "megalith chat /models/Kimi-K3 --system \"Answer briefly.\" --effort low\n"
                 "megalith chat --no-thinking --temperature 0 < questions.txt",
                 [options, &cli] { return RunChat(*options, cli); });
  AddModelArgument(*command, options->model);
  AddLoadOptions(*command, options->load);
  AddPrefillOption(*command, options->load.prefill);
  command->add_option("--system", options->system, "System message")->type_name("TEXT");
  command->add_option("--effort", options->effort, "How much the model is told to think")
      ->check(CLI::IsMember({"low", "high", "max"}))
      ->capture_default_str();
  command->add_flag("--no-thinking", options->no_thinking, "Instruct mode: no reasoning");
  command
      ->add_option("--context", options->context,
                   "Most tokens of the conversation; default: 8192 or what the model allows")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  command->add_option("-n,--max-tokens", options->max_tokens, "Most tokens of an answer")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  AddSamplingOptions(*command, options->sampling);
  AddDraftOptions(*command, options->draft);
}

}  // namespace megalith::apps
