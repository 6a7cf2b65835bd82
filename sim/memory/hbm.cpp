#include "sim/memory/hbm.hpp"

#include "models/units/check.hpp"

namespace kvsim {

Hbm::Hbm(Bytes capacity, Bytes block) : capacity_{capacity}, block_{block} {
  KVSIM_CHECK(capacity >= Bytes{}, "memory of {} bytes", capacity.count());
  KVSIM_CHECK(block >= Bytes{1}, "blocks of {} bytes", block.count());
}

Result<Hbm::Id, Refusal> Hbm::allocate(std::string_view owner, Bytes n) {
  KVSIM_CHECK(n >= Bytes{}, "{} asks for {} bytes", owner, n.count());
  const Bytes charged = round_up(n, block_);
  if (charged > free()) {
    return Refusal{
        .owner = std::string{owner}, .requested = charged, .free = free(), .owners = owners_};
  }
  const Id id = next_++;
  blocks_.emplace(id, Block{.owner = std::string{owner}, .size = charged});
  if (charged > Bytes{}) owners_[std::string{owner}] += charged;
  used_ += charged;
  if (used_ > peak_) {
    peak_ = used_;
    at_peak_ = owners_;
  }
  return id;
}

void Hbm::release(Id id) {
  const auto block = blocks_.find(id);
  KVSIM_CHECK(block != blocks_.end(), "allocation {} is not there", id);
  used_ -= block->second.size;
  const auto owner = owners_.find(block->second.owner);
  if (owner != owners_.end()) {
    owner->second -= block->second.size;
    if (owner->second == Bytes{}) owners_.erase(owner);
  }
  blocks_.erase(block);
}

}  // namespace kvsim
