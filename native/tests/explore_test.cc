// Lease, publish, wake and reclaim of the real headers, in every order that matters; see explore.h. With an argument,
// only the scenario of that name. Exits non-zero, and tells the steps, at the first order that breaks an expectation.
#include <cstdio>
#include <cstring>

#include "../receipts.h"
#include "../replay.h"
#include "explore.h"

using namespace apexrl;
using explore::expect;

namespace {

constexpr uint32_t kOwnerProcess = 1, kChunk = 2;

// A replay of rows that is as it was made at the start of each execution.
class Rig {
 public:
  explicit Rig(Sampler sampler, uint64_t capacity, uint32_t lanes, uint32_t desk) {
    Geometry g{};
    g.kind = Kind::rows;
    g.sampler = sampler;
    g.capacity = capacity;
    g.chunk = kChunk;
    g.lanes = lanes;
    g.streams = g.stack = g.n_step = g.trim_every = 1;
    g.alpha = 1.0;
    g.seed = 1;
    replay = Replay::create(g, {Column{8, 8, 0, 1, 0, 0, 0, 0}}, "{}", 0, 0.0, 0.0, "");
    Geometry& tight = replay->view().header().geometry;
    tight.desk = desk;
    tight.slots = std::min<uint32_t>(tight.slots, uint32_t(capacity / kChunk + lanes * (1 + desk) + 2));
    image_.assign(replay->segment()->data(), replay->segment()->data() + replay->segment()->nbytes());
  }
  void reset() {
    for (uint32_t i = 0; i <= kLaneLock + lanes(); ++i) segment()->unlock(i);
    std::memcpy(segment()->data(), image_.data(), image_.size());
    explore::share(segment()->data(), image_.size());
  }
  const std::shared_ptr<Segment>& segment() const { return replay->segment(); }
  const View& view() const { return replay->view(); }
  uint32_t lanes() const { return view().geometry().lanes; }
  std::unique_ptr<Owner> own() {
    int holder = 0;
    std::unique_ptr<Owner> owner(Owner::acquire(segment(), false, holder));
    expect(owner != nullptr, "nobody owns the replay");
    return owner;
  }
  std::shared_ptr<Replay> replay;

 private:
  std::vector<uint8_t> image_;
};

// Rows carry their number.
WriteStatus put(Writer& writer, uint64_t first, size_t n, bool wait = true) {
  std::vector<uint64_t> rows(n);
  for (size_t i = 0; i < n; ++i) rows[i] = first + i;
  const uint8_t* columns[] = {reinterpret_cast<const uint8_t*>(rows.data())};
  size_t start = 0;
  for (;;) {
    const WriteStatus status = writer.extend(columns, nullptr, n, start);
    if (status != WriteStatus::wait || !wait) return status;
    writer.wait(1'000'000'000);
  }
}

std::vector<uint64_t> take(Owner& owner, size_t n) {
  std::vector<uint64_t> rows(n), keys(n);
  std::vector<double> probabilities(n);
  std::vector<float> weights(n);
  Outputs out;
  out.n = n;
  out.column = {reinterpret_cast<uint8_t*>(rows.data())};
  out.next_column = {nullptr};
  out.keys = keys.data();
  out.probabilities = probabilities.data();
  out.weights = weights.data();
  while (owner.sample(0.4, out) != SampleStatus::ok) owner.wait_for_items(1'000'000'000);
  return rows;
}

// A sampler that waits for the only item, and the worker of another process that publishes it.
void wake(Rig& rig) {
  rig.reset();
  Writer writer(rig.segment(), 1);
  explore::as_process(2, [&] { writer.lease(); });
  const auto owner = rig.own();
  explore::run({{kOwnerProcess, [&] { expect(take(*owner, 1)[0] == 7, "another row came"); }},
                {2, [&] { put(writer, 7, 1); }}}, false);
}

// … beside the owner's own thread.
void wake_with_thread(Rig& rig) {
  rig.reset();
  Writer writer(rig.segment(), 1);
  explore::as_process(2, [&] { writer.lease(); });
  const auto owner = rig.own();
  explore::run({{kOwnerProcess, [&] { expect(take(*owner, 1)[0] == 7, "another row came"); }},
                {2, [&] { put(writer, 7, 1); }}});
}

// A full fifo: its worker waits for room until the sampler has taken an item.
void room(Rig& rig) {
  rig.reset();
  Writer writer(rig.segment(), 1);
  explore::as_process(2, [&] { writer.lease(); });
  const auto owner = rig.own();
  put(writer, 7, 1);
  explore::run({{kOwnerProcess, [&] { expect(take(*owner, 1)[0] == 7, "another row came"); }},
                {2, [&] { put(writer, 8, 1); }}});
}

// Two workers lease lanes and claim slots at the same moment.
void lease(Rig& rig) {
  rig.reset();
  std::unique_ptr<Writer> writers[2];
  const auto work = [&](int i) {
    writers[i] = std::make_unique<Writer>(rig.segment(), 1);
    expect(writers[i]->lease() == WriteStatus::ok, "no lane");
    expect(put(*writers[i], uint64_t(i), 1, false) == WriteStatus::ok, "no slot");
  };
  explore::run({{2, [&] { work(0); }}, {3, [&] { work(1); }}});
  expect(writers[0]->lane() != writers[1]->lane(), "two workers have one lane");
  const auto owner = rig.own();
  expect(owner->size() == 2 && owner->check() == 0.0, "not both rows are there");
}

// A worker dies at any step while the owner serves; whoever comes next finds what it published.
void reclaim(Rig& rig) {
  rig.reset();
  auto owner = rig.own();
  Writer* writer = nullptr;  // its process dies: nothing of it is destroyed
  uint32_t stored = 0;
  const auto& segment = rig.segment();
  explore::Thread worker{2, [&] {
    writer = new Writer(segment, 1);
    if (writer->lease() != WriteStatus::ok) return;
    for (uint64_t i = 0; i < 3; ++i, ++stored)
      if (put(*writer, i, 1, false) != WriteStatus::ok) return;
  }};
  worker.may_die = true;
  worker.after_death = [&] { segment->unlock(kLaneLock); };
  explore::run({worker, {kOwnerProcess, [&] {
    explore::advance(1'000'000'000);  // time to look for the dead
    owner->serve();
  }}}, false);
  segment->unlock(kLaneLock);
  explore::advance(1'000'000'000);
  owner->serve();
  const auto settled = [&](const char* what) {
    expect(owner->size() >= stored && owner->size() <= stored + 1 && owner->check() == 0.0, what);
    for (uint32_t s = 0; s < rig.view().geometry().slots; ++s) {
      const SlotWord word = SlotWord::unpack(rig.view().meta(s).word.load());
      expect(word.state == SlotState::unused || word.state == SlotState::free || word.state == SlotState::committed, "a slot is lost");
    }
  };
  settled("what was published is not there");
  owner.reset();
  owner = rig.own();
  settled("the next owner finds something else");
}

// The owner hands out a slot while the intake that died there is succeeded.
void receipt(Rig& rig) {
  rig.reset();
  const View& view = rig.view();
  auto owner = rig.own();
  Writer writer(rig.segment(), 1);
  writer.lease();
  put(writer, 0, kChunk);
  owner->serve();
  static auto memory = Segment::create(Receipts::bytes(2));
  std::memset(memory->data(), 0, memory->nbytes());
  Receipts receipts(memory);
  // It announced that all of the slot's positions are its own, and they are: it died before it entered that.
  receipts.announce(view, 0, kChunk, Entry{1, 1 << 16, kChunk, kChunk, 0});
  explore::run({{kOwnerProcess, [&] {
                   for (int lives = 0; lives < 5; ++lives) {
                     put(writer, 10, kChunk, false);
                     owner->serve();
                   }
                 }},
                {2, [&] { receipts.recover(view); }}}, false);
  expect(receipts.account(1).committed.load() == kChunk, "what was committed is not in the books");
  expect(SlotWord::unpack(view.meta(0).word.load()).generation > 2, "the slot had no other lives");
}

// --- the checker itself: what the memory model allows is found, what it forbids is not

std::atomic<uint32_t>* words() {
  alignas(64) static std::atomic<uint32_t> all[8];
  for (auto& one : all) one.store(0);
  explore::share(all, sizeof all);
  return all;
}

// Two threads store one word each, then load the other's. Both may miss, but not with a fence in between on both sides.
template <bool kFirst, bool kSecond>
void store_buffers(Rig&) {
  auto* x = words();
  uint32_t seen[2] = {};
  const auto side = [&](int i, bool fenced) {
    x[i].store(1, std::memory_order_release);
    if (fenced) std::atomic_thread_fence(std::memory_order_seq_cst);
    seen[i] = x[1 - i].load(std::memory_order_acquire);
  };
  explore::run({{1, [&] { side(0, kFirst); }}, {2, [&] { side(1, kSecond); }}});
  expect(seen[0] + seen[1] > 0, "both miss");
}

// A message behind a flag; a reader that need not see what was stored before the flag may read it while it is written.
template <std::memory_order kStore, std::memory_order kLoad>
void message(Rig&) {
  auto* x = words();
  auto* plain = reinterpret_cast<uint32_t*>(x + 4);
  explore::run({{1, [&] {
                   *plain = 7;
                   x[0].store(1, kStore);
                 }},
                {2, [&] {
                   if (x[0].load(kLoad) == 1) expect(*plain == 7, "an old message");
                 }}});
}

// Two increments, one of them torn into a load and a store.
template <bool kTorn>
void increments(Rig&) {
  auto* x = words();
  explore::run({{1, [&] { x[0].fetch_add(1, std::memory_order_relaxed); }},
                {2, [&] { kTorn ? x[0].store(x[0].load() + 1) : void(x[0].fetch_add(1)); }}});
  expect(x[0].load() == 2, "one is lost");
}

struct Litmus {
  const char* name;
  void (*body)(Rig&);
  const char* failure;  // that must be found
};
constexpr auto kRelaxed = std::memory_order_relaxed, kRelease = std::memory_order_release, kAcquire = std::memory_order_acquire;
constexpr Litmus kLitmus[] = {
    {"store buffers", store_buffers<false, false>, "both miss"},
    {"store buffers, one fence", store_buffers<true, false>, "both miss"},
    {"store buffers, two fences", store_buffers<true, true>, ""},
    {"message", message<kRelease, kAcquire>, ""},
    {"message, relaxed store", message<kRelaxed, kAcquire>, "a data race"},
    {"message, relaxed load", message<kRelease, kRelaxed>, "a data race"},
    {"increments", increments<false>, ""},
    {"increments, one torn", increments<true>, "one is lost"},
};

struct Scenario {
  const char* name;
  void (*body)(Rig&);
  Sampler sampler;
  uint64_t capacity;
  uint32_t lanes, desk;
  int stale;
};
constexpr Scenario kScenarios[] = {
    {"wake", wake, Sampler::fifo, 4, 1, 1, 3},
    {"wake with thread", wake_with_thread, Sampler::fifo, 4, 1, 1, 1},
    {"room", room, Sampler::fifo, 1, 1, 1, 0},
    {"lease", lease, Sampler::prioritized, 4, 2, 1, 1},
    {"reclaim", reclaim, Sampler::prioritized, 8, 1, 1, 1},
    {"receipt", receipt, Sampler::prioritized, 2, 1, 1, 1},
};

}  // namespace

int main(int argc, char** argv) {
  const uint64_t most = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : ~uint64_t(0);
  Rig none(Sampler::fifo, 1, 1, 1);
  for (const Litmus& one : kLitmus) {
    const explore::Outcome outcome = explore::check([&] { one.body(none); });
    const bool right = *one.failure == 0 ? outcome.failure.empty() && outcome.complete
                                         : outcome.failure.compare(0, std::strlen(one.failure), one.failure) == 0;
    if (right) continue;
    std::printf("%s: %s\n", one.name, outcome.failure.c_str());
    return 1;
  }
  for (const Scenario& s : kScenarios) {
    if (argc > 1 && std::strcmp(argv[1], "all") != 0 && std::strcmp(argv[1], s.name) != 0) continue;
    Rig rig(s.sampler, s.capacity, s.lanes, s.desk);
    explore::Limits limits;
    limits.stale = s.stale;
    limits.executions = most;
    const explore::Outcome outcome = explore::check([&] { s.body(rig); }, limits);
    if (!outcome.failure.empty()) {
      std::printf("%s: in execution %llu, %s", s.name, static_cast<unsigned long long>(outcome.executions), outcome.failure.c_str());
      return 1;
    }
    std::printf("%s: %llu orders in %llu executions%s\n", s.name, static_cast<unsigned long long>(outcome.orders),
                static_cast<unsigned long long>(outcome.executions), outcome.complete ? "" : ", not all");
    std::fflush(stdout);
  }
  std::puts("ok");
}
