#include "kernels/trapped_tiles.h"

#include <ucontext.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "kernels/cpu/tiles.h"

namespace megalith::kernels::test {
namespace {

struct Tile {
  int rows = 0;
  int row_bytes = 0;
  alignas(64) std::byte data[kTileRows][kTileRowBytes] = {};
};

thread_local Tile tiles[kNumTiles];
thread_local bool configured = false;
thread_local std::int64_t num_products = 0;

[[noreturn]] void Refuse(std::string_view what) {
  for (const std::string_view part :
       {std::string_view("AMX instruction that a processor would refuse: "), what,
        std::string_view("\n")}) {
    if (write(STDERR_FILENO, part.data(), part.size()) < 0) break;
  }
  std::abort();
}

void Check(bool condition, std::string_view what) {
  if (!condition) Refuse(what);
}

/// VEX-encoded, in the map 0F38: what all AMX instructions are.
struct Instruction {
  std::uint8_t opcode;
  int prefix;  ///< VEX.pp: 0 none, 1 66, 2 F3, 3 F2
  int reg;     ///< ModRM.reg
  int vvvv;
  bool is_memory;
  bool has_sib;
  int rm;               ///< ModRM.rm, if it is no memory operand
  std::byte* address;   ///< base + displacement
  std::int64_t offset;  ///< index * scale: what rows of tiles lie apart
  int length;           ///< bytes
};

std::int64_t General(const ucontext_t& context, int number) {
  constexpr int kRegisters[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                  REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                  REG_R12, REG_R13, REG_R14, REG_R15};
  return context.uc_mcontext.gregs[kRegisters[number]];
}

Instruction Decode(const ucontext_t& context) {
  const auto* code = reinterpret_cast<const std::uint8_t*>(context.uc_mcontext.gregs[REG_RIP]);
  Check(code[0] == 0xc4 && (code[1] & 0x1f) == 2, "not in the map 0F38");
  Check((code[2] & 0x84) == 0, "VEX.W or VEX.L set");
  const int extend_reg = (code[1] & 0x80) != 0 ? 0 : 8;
  const int extend_index = (code[1] & 0x40) != 0 ? 0 : 8;
  const int extend_base = (code[1] & 0x20) != 0 ? 0 : 8;
  const std::uint8_t modrm = code[4];
  Instruction decoded{.opcode = code[3],
                      .prefix = code[2] & 3,
                      .reg = ((modrm >> 3) & 7) | extend_reg,
                      .vvvv = (~code[2] >> 3) & 15,
                      .is_memory = modrm < 0xc0,
                      .has_sib = modrm < 0xc0 && (modrm & 7) == 4,
                      .rm = modrm & 7,
                      .address = nullptr,
                      .offset = 0,
                      .length = 5};
  if (!decoded.is_memory) {
    decoded.rm |= extend_base;
    return decoded;
  }
  const int mode = modrm >> 6;
  int base = decoded.rm | extend_base;
  bool has_base = true;
  if (decoded.has_sib) {
    const std::uint8_t sib = code[decoded.length++];
    base = (sib & 7) | extend_base;
    has_base = mode != 0 || (sib & 7) != 5;
    const int index = ((sib >> 3) & 7) | extend_index;
    if (index != 4) decoded.offset = General(context, index) << (sib >> 6);
  } else {
    Check(mode != 0 || decoded.rm != 5, "address relative to the instruction: not decoded here");
  }
  std::int64_t displacement = 0;
  if (mode == 1) {
    displacement = static_cast<std::int8_t>(code[decoded.length]);
    decoded.length += 1;
  } else if (mode == 2 || !has_base) {
    std::int32_t wide = 0;
    std::memcpy(&wide, code + decoded.length, sizeof(wide));
    displacement = wide;
    decoded.length += 4;
  }
  decoded.address = reinterpret_cast<std::byte*>(
      (has_base ? General(context, base) : std::int64_t{0}) + displacement);
  return decoded;
}

Tile& Use(int number, std::string_view instruction) {
  Check(configured, instruction);
  Check(number < kNumTiles && tiles[number].rows > 0, instruction);
  return tiles[number];
}

void Clear() {
  for (Tile& tile : tiles) tile = {};
  configured = false;
}

/// LDTILECFG.
void Configure(const std::byte* configuration) {
  std::uint8_t bytes[64];
  std::memcpy(bytes, configuration, sizeof(bytes));
  Clear();
  Check(bytes[0] == 1, "ldtilecfg: palette other than 1");
  for (int i = 1; i < 16; ++i) Check(bytes[i] == 0, "ldtilecfg: reserved byte or first row set");
  for (int i = 0; i < 16; ++i) {
    std::uint16_t row_bytes = 0;
    std::memcpy(&row_bytes, bytes + 16 + 2 * i, sizeof(row_bytes));
    const std::uint8_t rows = bytes[48 + i];
    Check(rows <= kTileRows && row_bytes <= kTileRowBytes, "ldtilecfg: tile too large");
    Check((rows == 0) == (row_bytes == 0),
          "ldtilecfg: rows without columns or columns without rows");
    Check(i < kNumTiles || rows == 0, "ldtilecfg: tile that does not exist");
    if (i < kNumTiles) tiles[i].rows = rows, tiles[i].row_bytes = row_bytes;
  }
  configured = true;
}

/// TILELOADD, TILELOADDT1.
void Load(const Instruction& instruction) {
  Check(instruction.has_sib, "tileloadd: no base and index");
  Tile& tile = Use(instruction.reg, "tileloadd: tile not configured");
  std::memset(tile.data, 0, sizeof(tile.data));
  for (int row = 0; row < tile.rows; ++row) {
    std::memcpy(tile.data[row], instruction.address + row * instruction.offset,
                static_cast<std::size_t>(tile.row_bytes));
  }
}

/// TILESTORED.
void Store(const Instruction& instruction) {
  Check(instruction.has_sib, "tilestored: no base and index");
  const Tile& tile = Use(instruction.reg, "tilestored: tile not configured");
  for (int row = 0; row < tile.rows; ++row) {
    std::memcpy(instruction.address + row * instruction.offset, tile.data[row],
                static_cast<std::size_t>(tile.row_bytes));
  }
}

/// Denormals as zero.
float Flush(float value) {
  return std::abs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value;
}

float InputOf(const std::byte* row, int index) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, row + 2 * index, sizeof(bits));
  return Flush(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16));
}

/// TDPBF16PS: c [m][n] += a [m][k][2] * b [k][n][2], in the manual's order.
void MultiplyBf16(const Instruction& instruction) {
  Tile& c = Use(instruction.reg, "tdpbf16ps: tile not configured");
  const Tile& a = Use(instruction.rm, "tdpbf16ps: tile not configured");
  const Tile& b = Use(instruction.vvvv, "tdpbf16ps: tile not configured");
  Check(&c != &a && &c != &b && &a != &b, "tdpbf16ps: tiles are not distinct");
  Check(c.row_bytes % 4 == 0 && a.row_bytes % 4 == 0 && b.row_bytes % 4 == 0,
        "tdpbf16ps: columns are not whole pairs");
  Check(c.rows == a.rows && c.row_bytes == b.row_bytes && a.row_bytes / 4 == b.rows,
        "tdpbf16ps: shapes do not fit");
  ++num_products;
  for (int m = 0; m < c.rows; ++m) {
    for (int n = 0; n < c.row_bytes / 4; ++n) {
      float sums[2] = {};
      for (int k = 0; k < a.row_bytes / 4; ++k) {
        for (int half = 0; half < 2; ++half) {
          sums[half] = Flush(std::fma(InputOf(a.data[m], 2 * k + half),
                                      InputOf(b.data[k], 2 * n + half), sums[half]));
        }
      }
      float sum = 0.0f;
      std::memcpy(&sum, c.data[m] + 4 * n, sizeof(sum));
      sum = Flush(Flush(sum) + Flush(sums[0] + sums[1]));
      std::memcpy(c.data[m] + 4 * n, &sum, sizeof(sum));
    }
  }
}

void Execute(const Instruction& instruction) {
  const int operation = instruction.opcode << 4 | instruction.prefix << 1 | instruction.is_memory;
  switch (operation) {
    case 0x491:  // ldtilecfg
      return Configure(instruction.address);
    case 0x490:  // tilerelease
      return Clear();
    case 0x496: {  // tilezero
      Tile& tile = Use(instruction.reg, "tilezero: tile not configured");
      std::memset(tile.data, 0, sizeof(tile.data));
      return;
    }
    case 0x4b7:  // tileloadd
    case 0x4b3:  // tileloaddt1
      return Load(instruction);
    case 0x4b5:  // tilestored
      return Store(instruction);
    case 0x5c4:  // tdpbf16ps
      return MultiplyBf16(instruction);
    default:
      Refuse("unknown instruction");
  }
}

void Handle(int, siginfo_t*, void* context) {
  auto& user = *static_cast<ucontext_t*>(context);
  const Instruction instruction = Decode(user);
  Execute(instruction);
  user.uc_mcontext.gregs[REG_RIP] += instruction.length;
}

}  // namespace

ScopedTrappedTiles::ScopedTrappedTiles() {
  struct sigaction action {};
  action.sa_sigaction = Handle;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGILL, &action, &previous_);
}

ScopedTrappedTiles::~ScopedTrappedTiles() {
  sigaction(SIGILL, &previous_, nullptr);
  Clear();
}

std::int64_t ScopedTrappedTiles::num_products() { return test::num_products; }

}  // namespace megalith::kernels::test
