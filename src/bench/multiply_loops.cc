#include "bench/multiply_loops.h"

#include <immintrin.h>

#include <iterator>

#include "kernels/cpu/tiles.h"

namespace megalith::bench {
namespace {

// More chains than latency times instructions a cycle (4 x 2) everywhere, fewer than registers.
constexpr int kChains = 12;

using Vector4 = float __attribute__((vector_size(16)));

}  // namespace

double MultiplyPortable(std::int64_t iterations, float* sink) {
  Vector4 sums[kChains] = {};
  Vector4 a = {1.0f, 1.0f, 1.0f, 1.0f};
  Vector4 b = {1e-6f, 1e-6f, 1e-6f, 1e-6f};
  for (std::int64_t i = 0; i < iterations; ++i) {
    // Opaque, so that the product is not taken out of the loop.
    asm volatile("" : "+x"(a), "+x"(b));
    for (Vector4& sum : sums) sum += a * b;
    asm volatile("" : "+x"(a));
    for (Vector4& sum : sums) asm volatile("" : "+x"(sum));
  }
  for (const Vector4& sum : sums) *sink += sum[0];
  return 2.0 * 4 * kChains * static_cast<double>(iterations);
}

__attribute__((target("avx2,fma"))) double MultiplyAvx2(std::int64_t iterations, float* sink) {
  __m256 sums[kChains];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  __m256 a = _mm256_set1_ps(1.0f);
  __m256 b = _mm256_set1_ps(1e-6f);
  for (std::int64_t i = 0; i < iterations; ++i) {
    asm volatile("" : "+x"(a), "+x"(b));
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(a, b, sum);
  }
  for (const __m256& sum : sums) *sink += _mm256_cvtss_f32(sum);
  return 2.0 * 8 * kChains * static_cast<double>(iterations);
}

__attribute__((target("avx512f"))) double MultiplyAvx512(std::int64_t iterations, float* sink) {
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  __m512 a = _mm512_set1_ps(1.0f);
  __m512 b = _mm512_set1_ps(1e-6f);
  for (std::int64_t i = 0; i < iterations; ++i) {
    asm volatile("" : "+v"(a), "+v"(b));
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(a, b, sum);
  }
  for (const __m512& sum : sums) *sink += _mm512_cvtss_f32(sum);
  return 2.0 * 16 * kChains * static_cast<double>(iterations);
}

__attribute__((target("avx512f,avx512bf16"))) double MultiplyAvx512Bf16(std::int64_t iterations,
                                                                        float* sink) {
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  __m512i a = _mm512_set1_epi32(0x3f803f80);
  __m512i b = _mm512_set1_epi32(0x35863586);
  for (std::int64_t i = 0; i < iterations; ++i) {
    asm volatile("" : "+v"(a), "+v"(b));
    for (__m512& sum : sums) {
      sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
    }
  }
  for (const __m512& sum : sums) *sink += _mm512_cvtss_f32(sum);
  return 2.0 * 32 * kChains * static_cast<double>(iterations);
}

double MultiplyAmx(std::int64_t iterations, float* sink) {
  using Tiles = kernels::HardwareTiles;
  kernels::TileShapes shapes;
  for (int tile = 0; tile < kernels::kNumTiles; ++tile) {
    shapes.rows[tile] = kernels::kTileRows;
    shapes.row_bytes[tile] = kernels::kTileRowBytes;
  }
  Tiles::Configure(shapes);  // all zero
  // 2 x 2 tiles of results, as a matmul of many rows has them.
  for (std::int64_t i = 0; i < iterations; ++i) {
    Tiles::DotBf16<0, 4, 6>();
    Tiles::DotBf16<1, 4, 7>();
    Tiles::DotBf16<2, 5, 6>();
    Tiles::DotBf16<3, 5, 7>();
  }
  float rows[kernels::kTileBytes / sizeof(float)];
  Tiles::Store<0>(rows, kernels::kTileRowBytes);
  Tiles::Release();
  *sink += rows[0];
  constexpr double kTileOperations = 2.0 * 16 * 16 * 32;
  return 4 * kTileOperations * static_cast<double>(iterations);
}

}  // namespace megalith::bench
