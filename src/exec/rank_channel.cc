#include "exec/rank_channel.h"

#include <cstring>

namespace megalith::exec {
namespace {

constexpr std::size_t kNumberBytes = sizeof(std::uint64_t);
constexpr std::size_t kHeadBytes = kNumberBytes + sizeof(std::uint32_t);

}  // namespace

fabric::Bytes& RankSender::Begin(std::uint32_t target) {
  ++number_;
  bytes_.resize(kHeadBytes);
  std::memcpy(bytes_.data(), &number_, sizeof number_);
  std::memcpy(bytes_.data() + kNumberBytes, &target, sizeof target);
  return bytes_;
}

Status RankSender::Send() {
  MEGALITH_RETURN_IF_ERROR(fabric_.status());
  return fabric_.Broadcast(&bytes_);
}

Result<RankMessage> RankReceiver::Receive() {
  MEGALITH_RETURN_IF_ERROR(fabric_.Broadcast(&bytes_));
  ++number_;
  RankMessage message;
  if (bytes_.size() < kHeadBytes) {
    return Fail(ErrorCode::kInternal, "message {} of rank 0 has {} bytes, at least {} expected",
                number_, bytes_.size(), kHeadBytes);
  }
  std::memcpy(&message.number, bytes_.data(), sizeof message.number);
  std::memcpy(&message.target, bytes_.data() + kNumberBytes, sizeof message.target);
  if (message.number != number_) {
    return Fail(ErrorCode::kInternal, "message {} of rank 0 expected, {} received", number_,
                message.number);
  }
  message.payload = std::span(bytes_).subspan(kHeadBytes);
  return message;
}

}  // namespace megalith::exec
