#pragma once

// Strict access to one JSON object: every key is asked for by name and type, and what nobody asked
// for can be listed. Private to the readers in this folder.

#include <simdjson.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace megalith::model {

/// Keeps the first error of a run of reads, so that a reader is a plain list of fields. Every
/// getter returns a value of its type after an error, too; the reader checks status() before it
/// uses any.
class JsonReader {
 public:
  /// `path` precedes keys in messages: "config.json: " or "config.json: text_config.". `status`
  /// outlives the reader and may be shared by several.
  JsonReader(simdjson::dom::object object, std::string path, Status* status)
      : object_(object), path_(std::move(path)), status_(status) {}

  const Status& status() const { return *status_; }

  bool Has(std::string_view key) const;
  /// Present with the value null.
  bool IsNull(std::string_view key) const;

  /// Each marks the key as known. A missing key, another JSON type (true is no integer, 3.0 is no
  /// integer, 3 is a number) or a value outside [min, max] is an error.
  std::int64_t Int(std::string_view key, std::int64_t min, std::int64_t max);
  std::optional<std::int64_t> IntOrNull(std::string_view key, std::int64_t min, std::int64_t max);
  float Float(std::string_view key);
  std::optional<float> FloatOrNull(std::string_view key);
  double Double(std::string_view key);
  bool Bool(std::string_view key);
  std::string_view String(std::string_view key);
  std::vector<std::int64_t> IntList(std::string_view key, std::int64_t min, std::int64_t max);
  std::vector<std::string_view> StringList(std::string_view key);
  /// An integer, or a list of at least one.
  std::vector<std::int64_t> IntOrIntList(std::string_view key, std::int64_t min, std::int64_t max);
  std::optional<JsonReader> Object(std::string_view key);

  /// Records "SOURCE: PATH.KEY: MESSAGE" unless an error is recorded already.
  void FailAt(ErrorCode code, std::string_view key, std::string_view message);

  /// Marks the key as known without reading it.
  void Ignore(std::string_view key) { known_.push_back(key); }
  /// Keys that were neither asked for nor ignored.
  std::vector<std::string_view> UnknownKeys() const;
  /// One line for each of them.
  void ListUnknown(std::vector<std::string>* warnings) const;

 private:
  std::optional<simdjson::dom::element> Get(std::string_view key);
  std::int64_t ToInt(simdjson::dom::element element, std::string_view key, std::int64_t min,
                     std::int64_t max);
  double ToDouble(simdjson::dom::element element, std::string_view key);
  float ToFloat(simdjson::dom::element element, std::string_view key);

  simdjson::dom::object object_;
  std::string path_;
  Status* status_;
  std::vector<std::string_view> known_;
};

/// Parses a document that must be an object of at most 16 MiB, nested at most 64 deep, without a
/// key that occurs twice in any object. The result lives as long as `parser` does not parse again.
/// kBadConfig with `source`.
Result<simdjson::dom::object> ParseJsonObject(std::string_view json, std::string_view source,
                                              simdjson::dom::parser* parser);
/// Reads the text for it: `path`, or `path`/config.json of a directory. Sets `source` to the file.
Result<std::string> ReadConfigText(const std::string& path, std::string* source);

}  // namespace megalith::model
