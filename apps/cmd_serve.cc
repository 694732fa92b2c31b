// megalith serve: one model for several people and tools at once.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "access_log.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/system_memory.h"
#include "base/units.h"
#include "build_commit.h"
#include "commands.h"
#include "console.h"
#include "default_model.h"
#include "drafting.h"
#include "engine/scheduler.h"
#include "exec/device_memory.h"
#include "loading.h"
#include "model/config.h"
#include "rank_job.h"
#include "serve/http/server.h"
#include "serve/service.h"
#include "serve/web/index_page.h"
#include "text/generation_ids.h"
#include "text/tokenizer.h"

namespace megalith::apps {
namespace {

constexpr std::int64_t kDefaultContext = 32768;
/// Of the memory that is free, for snapshots of sequences.
constexpr std::uint64_t kCacheShare = 10;
constexpr std::chrono::milliseconds kSignalPoll{50};
/// For the last bytes of answers, once nothing is computed any more.
constexpr std::chrono::seconds kLastWords{2};
/// For running answers to end, once nothing can be computed.
constexpr double kFailingSeconds = 1.0;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 50;

struct ServeOptions {
  std::string model;
  LoadOptions load;
  DraftChoice draft;
  serve::http::ServerOptions http;
  serve::ServiceOptions service;
  engine::SchedulerOptions scheduler;

  std::int32_t sequences = 8;
  std::int64_t context = 0;
  std::int64_t cache_positions = 0;
  std::int64_t prefix_cache_bytes = 0;
  std::int64_t prefix_store_bytes = std::int64_t{16} << 30;
  std::int64_t max_body_bytes = std::int64_t{64} << 20;
  bool no_prefix_cache = false;
  std::int32_t rows_per_step = 256;
  std::vector<std::string> api_key_files;
  std::string access_log;
  bool no_ui = false;
  double drain_seconds = 30.0;
};

/// One key a line; empty lines and those that begin with # are none.
Status ReadKeys(const std::string& path, std::vector<std::string>* keys) {
  MEGALITH_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  std::size_t count = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    line.erase(0, line.find_first_not_of(" \t\r"));
    line.erase(line.find_last_not_of(" \t\r") + 1);
    if (line.empty() || line.front() == '#') continue;
    keys->push_back(line);
    ++count;
  }
  // An empty file must not open the server to everybody.
  if (count == 0) return Fail(ErrorCode::kUsage, "--api-key-file: {} holds no key", path);
  return {};
}

/// Everything that can be refused before weights are read and a port is opened.
struct Prepared {
  std::string directory;
  model::Model model;
  text::Tokenizer tokenizer;
  std::vector<text::TokenId> stop_ids;
  Drafting drafting;
};

Result<Prepared> Prepare(ServeOptions& options) {
  MEGALITH_ASSIGN_OR_RETURN(const std::string directory, ResolveModel(options.model));
  MEGALITH_ASSIGN_OR_RETURN(model::Config config, model::ReadConfig(directory));
  MEGALITH_ASSIGN_OR_RETURN(text::Tokenizer tokenizer,
                            text::Tokenizer::Load(directory, config.model.vocab_size));
  MEGALITH_ASSIGN_OR_RETURN(auto stop_ids, text::FindStopIds(directory, tokenizer));
  MEGALITH_ASSIGN_OR_RETURN(Drafting drafting,
                            ResolveDrafting(options.draft, directory, config.model));
  for (const std::string& path : options.api_key_files) {
    MEGALITH_RETURN_IF_ERROR(ReadKeys(path, &options.service.api_keys));
  }
  if (options.service.model.empty()) {
    options.service.model = std::filesystem::weakly_canonical(directory).filename().string();
  }
  options.service.version = MEGALITH_VERSION;
  if (!options.no_ui) options.service.index_page = serve::web::IndexPage();
  return Prepared{directory, std::move(config.model), std::move(tokenizer), std::move(stop_ids),
                  std::move(drafting)};
}

engine::EngineOptions EngineOptionsOf(const ServeOptions& options, const Prepared& prepared) {
  engine::EngineOptions load;
  load.num_sequences = options.sequences;
  load.max_positions = static_cast<std::int32_t>(
      options.context > 0 ? options.context
                          : std::min(kDefaultContext, prepared.model.max_position_embeddings));
  load.cache_positions = options.cache_positions;
  load.prefix_cache_bytes = options.scheduler.prefix_cache_bytes;
  load.rows_per_step = options.rows_per_step;
  load.drafter = prepared.drafting.drafter;
  load.max_drafts = prepared.drafting.options.max_drafts;
  // What all answers need, and a few rows for prompts whose log probabilities are asked for.
  load.logit_rows_per_step = options.sequences * (load.max_drafts + 1) + 16;
  return load;
}

void ReportMemory(const engine::Engine& engine, const ServeOptions& options) {
  const exec::MemorySizes& sizes = engine.executor().memory().sizes();
  LogFormat(LogLevel::kInfo,
            "{} sequences of up to {} tokens; state {}, cache pages {} (of them up to {} for the "
            "prefix cache)",
            engine.num_sequences(), engine.max_positions(),
            FormatBytes(
                static_cast<std::uint64_t>(sizes.kda_state + sizes.conv_state + sizes.draft_cache)),
            FormatBytes(static_cast<std::uint64_t>(sizes.mla_cache)),
            FormatBytes(static_cast<std::uint64_t>(options.scheduler.prefix_cache_bytes)));
}

/// The port stays open, so that whoever looks is told. Running answers go on for a while; what is
/// left then is told that it ends.
void Drain(serve::Service& service, engine::Scheduler& scheduler, serve::http::Server& server,
           const ServeOptions& options) {
  const std::size_t num_left = scheduler.GetStatus().generations.size();
  LogFormat(LogLevel::kInfo, "ending{}; a second signal ends at once",
            num_left == 0
                ? ""
                : fmt::format(": {} answers may go on for {} s", num_left, options.drain_seconds));
  service.BeginDrain();
  const std::int64_t start = NowNs();
  while (!scheduler.GetStatus().generations.empty() &&
         SecondsSince(start) < options.drain_seconds) {
    std::this_thread::sleep_for(kSignalPoll);
  }
  scheduler.Stop();
  server.Stop(std::chrono::steady_clock::now() + kLastWords);
}

/// Nothing can be generated any more: whoever waits is told, and so is whoever started the server.
Status End(const Error& failure, serve::Service& service, engine::Scheduler& scheduler,
           serve::http::Server& server) {
  LogFormat(LogLevel::kError, "ending: {}", failure.message);
  service.BeginDrain();
  // Each ends with the failure.
  const std::int64_t start = NowNs();
  while (!scheduler.GetStatus().generations.empty() && SecondsSince(start) < kFailingSeconds) {
    std::this_thread::sleep_for(kSignalPoll);
  }
  scheduler.Stop();
  server.Stop(std::chrono::steady_clock::now() + kLastWords);
  return tl::unexpected(failure);
}

Status Serve(ServeOptions& options, const Cli& cli) {
  MEGALITH_ASSIGN_OR_RETURN(Prepared prepared, Prepare(options));
  options.http.limits.max_body_bytes = static_cast<std::size_t>(options.max_body_bytes);
  std::unique_ptr<AccessLog> access_log;
  if (!options.access_log.empty()) {
    MEGALITH_ASSIGN_OR_RETURN(access_log, AccessLog::Open(options.access_log));
    options.http.on_access = [&access_log](const serve::http::AccessRecord& record) {
      access_log->Write(record);
    };
  }
  MEGALITH_ASSIGN_OR_RETURN(engine::RankLeader* const leader, cli.ranks->Lead(options.load.ranks));
  if (leader != nullptr && !options.scheduler.prefix_store.empty()) {
    return Fail(ErrorCode::kUnsupported,
                "--cache-dir: sequences of several ranks cannot be kept in a folder yet");
  }
  if (options.no_prefix_cache) {
    options.scheduler.prefix_cache_bytes = 0;
  } else if (options.prefix_cache_bytes > 0) {
    options.scheduler.prefix_cache_bytes = options.prefix_cache_bytes;
  } else {
    // Each rank of this machine takes as much.
    const std::uint32_t num_ranks = leader == nullptr ? 1 : leader->fabric().num_local_ranks();
    options.scheduler.prefix_cache_bytes =
        static_cast<std::int64_t>(ReadMemoryStatus().available_bytes / kCacheShare / num_ranks);
  }
  options.scheduler.prefix_store_bytes = options.prefix_store_bytes;

  // Destroyed from the last to the first: nobody is asked by a server that is gone.
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<engine::Scheduler> scheduler;
  serve::Service service(options.service);
  MEGALITH_ASSIGN_OR_RETURN(const std::unique_ptr<serve::http::Server> server,
                            serve::http::Server::Start(options.http, [&service](auto exchange) {
                              service.Handle(std::move(exchange));
                            }));
  prepared.drafting.Report();
  // Health and progress are there while the weights are read.
  const std::string host = options.http.host.find(':') == std::string::npos
                               ? options.http.host
                               : "[" + options.http.host + "]";
  LogFormat(LogLevel::kInfo, "listening on http://{}:{}{}", host, server->port(),
            options.no_ui ? "" : ", with a page to chat");
  engine::EngineOptions load = EngineOptionsOf(options, prepared);
  load.progress = [&service](const Progress& progress) {
    if (progress.total == 0) return;
    service.SetLoadProgress(static_cast<double>(progress.done) /
                            static_cast<double>(progress.total));
  };
  MEGALITH_ASSIGN_OR_RETURN(engine,
                            LoadEngine(prepared.directory, cli, options.load, std::move(load)));
  ReportMemory(*engine, options);
  options.scheduler.max_drafts = prepared.drafting.options.max_drafts;
  options.scheduler.always = prepared.drafting.options.always;
  options.scheduler.drafter = prepared.drafting.options.drafter;
  options.scheduler.ngram = prepared.drafting.options.proposer != nullptr;
  MEGALITH_ASSIGN_OR_RETURN(scheduler, engine::Scheduler::Start(*engine, options.scheduler));
  serve::ServedModel served{std::move(prepared.tokenizer), std::move(prepared.stop_ids),
                            scheduler.get()};
  if (!options.scheduler.prefix_store.empty()) {
    MEGALITH_ASSIGN_OR_RETURN(const std::string identity, engine->StateIdentity());
    served.replay_file =
        (std::filesystem::path(options.scheduler.prefix_store) / identity / "turns").string();
  }
  service.SetModel(std::move(served));
  LogFormat(LogLevel::kInfo, "ready: {} as \"{}\"", prepared.directory, options.service.model);

  std::optional<Error> failure;
  while (!cli.cancel->IsCancelled() && !failure) {
    std::this_thread::sleep_for(kSignalPoll);
    failure = scheduler->failure();
  }
  if (failure) return End(*failure, service, *scheduler, *server);
  Drain(service, *scheduler, *server, options);
  failure = scheduler->failure();
  return failure ? tl::unexpected(*failure) : Status();
}

CLI::Option* AddSize(CLI::App& command, const std::string& name, std::int64_t& bytes,
                     std::int64_t least, const std::string& description) {
  return command.add_option(name, bytes, description)
      ->type_name("SIZE")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(least, kMostBytes));
}

/// What is wrong with an origin as browsers send it, or "*"; empty: nothing.
std::string CheckOrigin(const std::string& origin) {
  const std::size_t host = origin.find("://");
  const bool is_origin = host != std::string::npos && host > 0 && host + 3 < origin.size() &&
                         origin.find('/', host + 3) == std::string::npos;
  if (origin == "*" || is_origin) return {};
  return "an origin as https://page.example:8443 expected, without a path, or *; " + origin +
         " given";
}

/// Written so that NaN fails.
std::string CheckSeconds(const std::string& text) {
  double seconds = -1.0;
  const bool is_number = CLI::detail::lexical_cast(text, seconds);
  if (is_number && seconds >= 0.0 && seconds <= 1e6) return {};
  return "0 to 1000000 seconds expected, " + text + " given";
}

void AddServerOptions(CLI::App& command, ServeOptions& options) {
  command.add_option("--host", options.http.host, "Address to listen at; 0.0.0.0 for everybody")
      ->type_name("HOST")
      ->capture_default_str();
  command.add_option("--port", options.http.port, "Port; 0: any free one, which is printed")
      ->type_name("PORT")
      ->capture_default_str();
  command
      .add_option("--api-key", options.service.api_keys,
                  "Key that clients must send; may be given more than once. It can be seen in the "
                  "list of processes: better a file")
      ->type_name("KEY");
  command
      .add_option("--api-key-file", options.api_key_files,
                  "File with keys, one a line; may be given more than once")
      ->type_name("F");
  command
      .add_option("--cors", options.service.cors_origins,
                  "Origin of web pages that may ask, or * for all; may be given more than once")
      ->type_name("ORIGIN")
      ->check(CLI::Validator([](std::string& origin) { return CheckOrigin(origin); }, ""));
  command
      .add_option("--model-name", options.service.model,
                  "Name of the model in the API; default: the folder's")
      ->type_name("NAME");
  command
      .add_option("--alias", options.service.aliases,
                  "Further name that requests may use; may be given more than once")
      ->type_name("NAME");
  command.add_flag("--accept-any-model", options.service.accept_any_model,
                   "Whatever model a request names, it gets this one");
  command.add_flag("--accept-unknown-fields", options.service.accept_unknown_fields,
                   "Ignore fields of requests that do not exist, with a warning in the answer, "
                   "instead of refusing them");
  command.add_flag("--no-ui", options.no_ui, "No web page at /");
  command
      .add_option("--access-log", options.access_log,
                  "File for one JSON line per request; - is stdout. Holds no text of users")
      ->type_name("F");
  command
      .add_option("--max-connections", options.http.max_connections,
                  "Connections at once; further ones are answered 503")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  AddSize(command, "--max-body", options.max_body_bytes, 1024, "Largest request body");
  command
      .add_option("--drain-seconds", options.drain_seconds,
                  "At SIGTERM or Ctrl-C running answers may go on for so long")
      ->type_name("S")
      ->check(CLI::Validator([](std::string& text) { return CheckSeconds(text); }, ""))
      ->capture_default_str();
}

void AddSchedulingOptions(CLI::App& command, ServeOptions& options) {
  command.add_option("--sequences", options.sequences, "Answers that are generated at once")
      ->type_name("N")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      .add_option("--context", options.context,
                  "Most tokens of a prompt and its answer; default: 32768 or what the model allows")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{2}, std::int64_t{1} << 30));
  command
      .add_option("--cache-tokens", options.cache_positions,
                  "Tokens that all running sequences may hold together; requests wait until theirs "
                  "fit. Default: every sequence at full length")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
  command
      .add_option("--max-queue", options.scheduler.max_queued,
                  "Requests that may wait; further ones are answered 429")
      ->type_name("N")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command
      .add_option("--rows-per-step", options.rows_per_step,
                  "Prompt tokens per step while no answer is being generated")
      ->type_name("N")
      ->check(CLI::Range(1, program::kMaxRowBucket))
      ->capture_default_str();
  command
      .add_option("--prompt-slice", options.scheduler.prompt_rows_beside_answers,
                  "Prompt tokens per step beside running answers: bounds the pause they see")
      ->type_name("N")
      ->check(CLI::Range(1, program::kMaxRowBucket))
      ->capture_default_str();
  command
      .add_option("--prompt-share", options.scheduler.prompt_share,
                  "Most of the time that prompts may take from running answers")
      ->type_name("0..1")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  CLI::Option* memory = AddSize(
      command, "--prefix-cache", options.prefix_cache_bytes, 1 << 20,
      "Memory for the state of earlier sequences, which requests that begin alike go on from; "
      "default: a tenth of what is free");
  command
      .add_flag("--no-prefix-cache", options.no_prefix_cache, "Every prompt runs from its start")
      ->excludes(memory);
  CLI::Option* directory = command
                               .add_option("--cache-dir", options.scheduler.prefix_store,
                                           "Folder where that state outlives the process")
                               ->type_name("DIR");
  AddSize(command, "--cache-dir-size", options.prefix_store_bytes, 1 << 20,
          "Most bytes in that folder; default: 16G")
      ->needs(directory);
}

}  // namespace

void RegisterServe(CLI::App& app, Cli& cli) {
  const auto options = std::make_shared<ServeOptions>();
  options->http.port = 8080;
  // Requests are read and their texts encoded on these threads: a long one must not hold up others.
  options->http.num_threads = 4;
  options->service.model.clear();
  CLI::App* command =
      AddCommand(app, cli, "serve", "Serve a model over HTTP: the OpenAI API, and a page to chat",
                 "megalith serve\n"
                 "megalith serve /models/Kimi-K3 --host 0.0.0.0 --api-key-file keys.txt\n"
                 "megalith serve /models/Kimi-K3 --context 131072 --sequences 16 "
                 "--cache-tokens 524288 --cache-dir /var/cache/megalith\n"
                 "curl http://127.0.0.1:8080/v1/chat/completions -d "
                 "'{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'",
                 [options, &cli] { return Serve(*options, cli); });
  AddModelArgument(*command, options->model);
  AddLoadOptions(*command, options->load);
  AddPrefillOption(*command, options->load.prefill);
  AddDraftOptions(*command, options->draft);
  AddServerOptions(*command, *options);
  AddSchedulingOptions(*command, *options);
}

}  // namespace megalith::apps
