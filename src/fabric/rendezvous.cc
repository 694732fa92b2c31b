#include "fabric/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <vector>

#include "base/clock.h"

// Protocol: a member connects and sends Hello; member 0 answers with the file; the member takes it
// and says so; when all have, member 0 tells everybody to go on. Instead of any answer member 0 may
// send a refusal with the reason.

namespace megalith::fabric {
namespace {

/// Raise when Hello, the shared memory's content or the message formats of fabrics change.
constexpr std::uint32_t kProtocolVersion = 1;
constexpr std::uint64_t kMagic = 0x6d6567616c697468;  // "megalith"
/// Between two tries to reach member 0.
constexpr timespec kRetry{0, 5'000'000};

struct Hello {
  std::uint64_t magic = kMagic;
  std::uint32_t version = kProtocolVersion;
  std::uint32_t member = 0;
  std::uint32_t num_members = 0;
};

enum class Kind : std::uint32_t { kFile, kTaken, kGo, kRefused };
struct Message {
  Kind kind;
  char reason[508];
};

Status CheckArguments(const Rendezvous& rendezvous) {
  const std::string& id = rendezvous.job_id;
  const bool fine = !id.empty() && id.size() <= 64 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
  if (!fine) {
    return Fail(ErrorCode::kUsage, "job id '{}': 1 to 64 letters, digits, '-', '_' or '.' expected",
                id);
  }
  if (rendezvous.member >= rendezvous.ranks.size()) {
    return Fail(ErrorCode::kUsage, "member {} of {}", rendezvous.member, rendezvous.ranks.size());
  }
  return {};
}

tl::unexpected<Error> SystemError(const char* what) {
  return Fail(ErrorCode::kIo, "rendezvous of ranks: {}: {}", what, std::strerror(errno));
}

struct Address {
  sockaddr_un value{};
  socklen_t bytes = 0;
};

Address AddressOf(const Rendezvous& rendezvous) {
  const std::string name = fmt::format("megalith.{}.{}", ::getuid(), rendezvous.job_id);
  Address address;
  address.value.sun_family = AF_UNIX;
  // A leading zero byte: a name that is not in the file system.
  std::memcpy(address.value.sun_path + 1, name.data(), name.size());
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Descriptor NewSocket() {
  return Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

bool SameUser(int socket) {
  ucred credentials{};
  socklen_t bytes = sizeof credentials;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) == 0 &&
         credentials.uid == ::getuid();
}

/// A message with a descriptor, or without (-1). Messages are small: the socket has room.
bool Send(int socket, const Message& message, int descriptor = -1) {
  iovec part{const_cast<Message*>(&message), sizeof message};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (descriptor >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr* attached = CMSG_FIRSTHDR(&header);
    attached->cmsg_level = SOL_SOCKET;
    attached->cmsg_type = SCM_RIGHTS;
    attached->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(attached), &descriptor, sizeof(int));
  }
  return ::sendmsg(socket, &header, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof message);
}

Message Refusal(const std::string& reason) {
  Message message{Kind::kRefused, {}};
  std::memcpy(message.reason, reason.data(), std::min(reason.size(), sizeof message.reason - 1));
  return message;
}

enum class Got { kMessage, kNothing, kEnd };

/// `descriptor` takes one that came along.
Got Receive(int socket, Message* message, Descriptor* descriptor) {
  iovec part{message, sizeof *message};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  const ssize_t bytes = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  if (bytes < 0) return errno == EAGAIN || errno == EINTR ? Got::kNothing : Got::kEnd;
  if (const cmsghdr* attached = CMSG_FIRSTHDR(&header);
      attached != nullptr && attached->cmsg_type == SCM_RIGHTS) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(attached), sizeof(int));
    *descriptor = Descriptor(number);
  }
  if (bytes != static_cast<ssize_t>(sizeof *message)) return Got::kEnd;
  message->reason[sizeof message->reason - 1] = '\0';
  return Got::kMessage;
}

int PollTimeout(std::int64_t deadline_ns) {
  return static_cast<int>(std::clamp<std::int64_t>((deadline_ns - NowNs()) / 1'000'000, 0, 1000));
}

/// Member 0's side.
class Host {
 public:
  Host(const Rendezvous& rendezvous, const Descriptor& file)
      : rendezvous_(rendezvous), file_(file), taken_(rendezvous.ranks.size(), false) {
    taken_[0] = true;
  }

  Status Run(std::int64_t deadline_ns) {
    Status status = Gather(deadline_ns);
    const Message last = status ? Message{Kind::kGo, {}} : Refusal(status.error().message);
    for (const Guest& guest : guests_) Send(guest.socket.number(), last);
    return status;
  }

 private:
  struct Guest {
    Descriptor socket;
    bool known = false;  // has said hello
    std::uint32_t member = 0;
  };

  Status Gather(std::int64_t deadline_ns) {
    listener_ = NewSocket();
    if (!listener_.valid()) return SystemError("socket");
    const Address address = AddressOf(rendezvous_);
    if (::bind(listener_.number(), reinterpret_cast<const sockaddr*>(&address.value),
               address.bytes) != 0) {
      if (errno == EADDRINUSE) {
        return Fail(ErrorCode::kUsage, "job id '{}': another job of this user has it",
                    rendezvous_.job_id);
      }
      return SystemError("bind");
    }
    if (::listen(listener_.number(), static_cast<int>(rendezvous_.ranks.size())) != 0) {
      return SystemError("listen");
    }
    while (std::find(taken_.begin(), taken_.end(), false) != taken_.end()) {
      if (NowNs() >= deadline_ns) return Late();
      std::vector<pollfd> watched = {{listener_.number(), POLLIN, 0}};
      for (const Guest& guest : guests_) watched.push_back({guest.socket.number(), POLLIN, 0});
      ::poll(watched.data(), watched.size(), PollTimeout(deadline_ns));
      // From the back, as guests may be dropped.
      for (std::size_t i = guests_.size(); i-- > 0;) {
        if (watched[i + 1].revents != 0) MEGALITH_RETURN_IF_ERROR(Hear(i));
      }
      if (watched[0].revents != 0) Accept();
    }
    return {};
  }

  void Accept() {
    Descriptor socket(
        ::accept4(listener_.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.valid() && SameUser(socket.number())) guests_.push_back({std::move(socket)});
  }

  /// Fails if a member that has been counted on is gone.
  Status Hear(std::size_t index) {
    Guest& guest = guests_[index];
    if (!guest.known) {
      if (!Welcome(&guest)) guests_.erase(guests_.begin() + static_cast<std::ptrdiff_t>(index));
      return {};
    }
    Message message;
    Descriptor none;
    switch (Receive(guest.socket.number(), &message, &none)) {
      case Got::kNothing:
        return {};
      case Got::kMessage:
        taken_[guest.member] = true;
        return {};
      case Got::kEnd:
        break;
    }
    return Fail(ErrorCode::kIo, "rank {} has gone during the start of the job",
                rendezvous_.ranks[guest.member]);
  }

  bool Welcome(Guest* guest) {
    Hello hello;
    const int socket = guest->socket.number();
    if (::recv(socket, &hello, sizeof hello, 0) != static_cast<ssize_t>(sizeof hello)) return false;
    std::string reason;
    if (hello.magic != kMagic || hello.version != kProtocolVersion) {
      reason = fmt::format("rank 0 is another version of this program (protocol {}, {} here)",
                           kProtocolVersion, hello.version);
    } else if (hello.num_members != rendezvous_.ranks.size() || hello.member == 0 ||
               hello.member >= rendezvous_.ranks.size()) {
      reason = fmt::format("rank {} of {} wanted to join a job of {} ranks", hello.member,
                           hello.num_members, rendezvous_.ranks.size());
    } else if (std::any_of(guests_.begin(), guests_.end(), [&](const Guest& other) {
                 return other.known && other.member == hello.member;
               })) {
      reason = fmt::format("there are two processes for rank {}", rendezvous_.ranks[hello.member]);
    }
    if (!reason.empty()) {
      Send(socket, Refusal(reason));
      return false;
    }
    guest->known = true;
    guest->member = hello.member;
    return Send(socket, {Kind::kFile, {}}, file_.number());
  }

  Status Late() const {
    std::vector<std::uint32_t> missing;
    for (std::size_t i = 0; i < taken_.size(); ++i) {
      if (!taken_[i]) missing.push_back(rendezvous_.ranks[i]);
    }
    return Fail(ErrorCode::kIo,
                "not all of {} ranks of this host have come within {} ms; missing: {}",
                rendezvous_.ranks.size(), rendezvous_.timeout_ms, fmt::join(missing, ", "));
  }

  const Rendezvous& rendezvous_;
  const Descriptor& file_;
  Descriptor listener_;
  std::vector<Guest> guests_;
  std::vector<bool> taken_;  // by member
};

std::uint32_t Self(const Rendezvous& rendezvous) { return rendezvous.ranks[rendezvous.member]; }

Result<Descriptor> Connect(const Rendezvous& rendezvous, std::int64_t deadline_ns) {
  const Address address = AddressOf(rendezvous);
  while (true) {
    Descriptor socket = NewSocket();
    if (!socket.valid()) return SystemError("socket");
    if (::connect(socket.number(), reinterpret_cast<const sockaddr*>(&address.value),
                  address.bytes) == 0) {
      if (SameUser(socket.number())) return socket;
      return Fail(ErrorCode::kIo, "job id '{}' is taken by another user", rendezvous.job_id);
    }
    // Not there yet, or its queue is full.
    if (errno != ECONNREFUSED && errno != EAGAIN) return SystemError("connect");
    if (NowNs() >= deadline_ns) {
      return Fail(ErrorCode::kIo, "rank {}: rank {} of job '{}' has not come within {} ms",
                  Self(rendezvous), rendezvous.ranks[0], rendezvous.job_id, rendezvous.timeout_ms);
    }
    nanosleep(&kRetry, nullptr);
  }
}

Result<Descriptor> Join(const Rendezvous& rendezvous, std::int64_t deadline_ns,
                        const std::function<Status(const Descriptor&)>& take) {
  MEGALITH_ASSIGN_OR_RETURN(const Descriptor socket, Connect(rendezvous, deadline_ns));
  Hello hello;
  hello.member = rendezvous.member;
  hello.num_members = static_cast<std::uint32_t>(rendezvous.ranks.size());
  if (::send(socket.number(), &hello, sizeof hello, MSG_NOSIGNAL) < 0) return SystemError("send");
  Descriptor file;
  while (NowNs() < deadline_ns) {
    pollfd watched{socket.number(), POLLIN, 0};
    ::poll(&watched, 1, PollTimeout(deadline_ns));
    Message message;
    const Got got = Receive(socket.number(), &message, &file);
    if (got == Got::kNothing) continue;
    if (got == Got::kEnd) {
      return Fail(ErrorCode::kIo, "rank {}: rank {} has gone during the start of the job",
                  Self(rendezvous), rendezvous.ranks[0]);
    }
    if (message.kind == Kind::kRefused) {
      return Fail(ErrorCode::kIo, "rank {}: {}", Self(rendezvous), message.reason);
    }
    if (message.kind == Kind::kGo) return file;
    if (!file.valid()) {
      return Fail(ErrorCode::kIo, "rank {}: no shared memory came from rank {}", Self(rendezvous),
                  rendezvous.ranks[0]);
    }
    MEGALITH_RETURN_IF_ERROR(take(file));
    Send(socket.number(), {Kind::kTaken, {}});
  }
  return Fail(ErrorCode::kIo, "rank {}: not all ranks have come within {} ms", Self(rendezvous),
              rendezvous.timeout_ms);
}

}  // namespace

Result<Descriptor> Meet(const Rendezvous& rendezvous, Descriptor file,
                        const std::function<Status(const Descriptor&)>& take) {
  MEGALITH_RETURN_IF_ERROR(CheckArguments(rendezvous));
  const std::int64_t deadline_ns = NowNs() + rendezvous.timeout_ms * 1'000'000;
  if (rendezvous.member != 0) {
    // Member 0 knows who is missing and says so just before this gives up by itself.
    constexpr std::int64_t kGraceNs = 2'000'000'000;
    return Join(rendezvous, deadline_ns + kGraceNs, take);
  }
  MEGALITH_RETURN_IF_ERROR(take(file));
  MEGALITH_RETURN_IF_ERROR(Host(rendezvous, file).Run(deadline_ns));
  return file;
}

}  // namespace megalith::fabric
