// What holds when processes die or misbehave at bad moments, one case after the other. Exits non-zero at the first
// broken expectation.
#include <sys/wait.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "../board.h"
#include "../receipts.h"
#include "check.h"

using namespace apexrl;
using namespace apexrl::testing;

namespace {
std::atomic<bool> exhausted{false};  // threads but the first get no memory
thread_local bool first_thread = false;
}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  void* memory = exhausted && !first_thread ? nullptr : std::malloc(bytes);
  return memory != nullptr ? memory : throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

std::shared_ptr<Replay> make(Sampler sampler, uint64_t capacity = 1000, Kind kind = Kind::rows) {
  Geometry g = geometry(kind, capacity, 16, 4, kind == Kind::rows ? 1 : 8);
  g.sampler = sampler;
  return create(g, {Column{8, 8, kind != Kind::rows, 1, 0, 0, 0, 0}});
}

void put(Writer& writer, uint64_t first, size_t n) {
  std::vector<uint64_t> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = first + i;
  const uint8_t* columns[] = {reinterpret_cast<const uint8_t*>(values.data())};
  size_t start = 0;
  CHECK(writer.extend(columns, nullptr, n, start) == WriteStatus::ok && start == n);
}

struct Taken {
  std::vector<uint64_t> values, next, keys;
  std::vector<double> probabilities;
  std::vector<float> weights, reward, discount;
  Outputs out;
  explicit Taken(size_t n) : values(n), next(n), keys(n), probabilities(n), weights(n), reward(n), discount(n) {
    out.n = n;
    out.column = {reinterpret_cast<uint8_t*>(values.data())};
    out.next_column = {reinterpret_cast<uint8_t*>(next.data())};
    out.keys = keys.data();
    out.probabilities = probabilities.data();
    out.weights = weights.data();
    out.reward = reward.data();
    out.discount = discount.data();
  }
};

// Every shared word that names a slot, a lane, a state or a number of positions, made to say what cannot be.
void wrong_words_harm_no_process() {
  using Spoil = void (*)(const View&);
  const Spoil spoils[] = {
      [](const View& v) { v.meta(0).count.store(4'000'000'000); },
      [](const View& v) { v.meta(0).count.store(17); },
      [](const View& v) { v.meta(0).drained.store(4'000'000'000); },
      [](const View& v) { v.meta(0).consumed.store(4'000'000'000); },
      [](const View& v) { v.meta(0).items.store(4'000'000'000); },
      [](const View& v) { v.meta(0).word.store(SlotWord{SlotState::leased, 8000, 1}.pack()); },
      [](const View& v) { v.meta(0).word.store(SlotWord{SlotState::closed, 8000, 1}.pack()); },
      [](const View& v) { v.meta(0).word.store(SlotWord{SlotState(7), 0, 1}.pack()); },
      [](const View& v) { v.meta(0).word.store(~uint64_t(0)); },
      [](const View& v) { v.meta(1).word.store(SlotWord{SlotState::leased, 8000, 1}.pack()); },
      [](const View& v) { v.header().next_unused.store(~uint64_t(0)); },
      [](const View& v) { v.header().granting.store(4'000'000'000); },
      [](const View& v) { v.header().granting.store(1), v.meta(0).word.store(SlotWord{SlotState::leased, 8000, 1}.pack()); },
      [](const View& v) { v.desk(0)[0].store(4'000'000'000), v.desk(0)[1].store(~0u); },
      [](const View& v) { v.next(0)[0].store(4'000'000'000); },
      [](const View& v) { v.current(0)[0].store(4'000'000'000); },
      [](const View& v) { v.lane(0).streams.store(~0u); },
      [](const View& v) { v.staged(0)[6] = std::numeric_limits<double>::infinity(); },
      [](const View& v) { v.staged(0)[6] = std::numeric_limits<double>::quiet_NaN(); },
      [](const View& v) { v.staged(0)[1] = -1.0; },
      [](const View& v) { std::fill_n(v.staged(0), 16, -1.0); },
      [](const View& v) { v.leaves(0)[1] = std::numeric_limits<double>::infinity(); },
      [](const View& v) { v.leaves(0)[2] = -5.0; },
      [](const View& v) { std::fill_n(v.leaves(0), 16, std::numeric_limits<double>::quiet_NaN()); },
  };
  for (const Sampler sampler : {Sampler::prioritized, Sampler::fifo})
    for (const Spoil spoil : spoils)
      for (const bool taken_in : {false, true}) {
        auto replay = make(sampler);
        auto owner = taken_in ? owned(replay) : nullptr;
        {
          Writer writer(replay->segment(), 1);
          CHECK(writer.lease() == WriteStatus::ok);
          put(writer, 0, 5);
          if (owner) owner->serve();
          put(writer, 5, 3);
          spoil(replay->view());
          replay->view().lane(0).published.fetch_add(1);
          for (int round = 0; round < 3; ++round) {  // whoever gives the replay up owns it again
            if (owner) owner->serve();
            Taken taken(4);
            if (owner) owner->sample(0.4, taken.out);
            owner = owned(replay);
            CHECK(owner != nullptr);
            CHECK(owner->size() <= 1000);
            const std::vector<double> fresh(4, 0.5);
            size_t applied = 0, stale = 0;
            owner->update(taken.keys.data(), fresh.data(), 4, applied, stale);
            const uint64_t more = 100;
            const uint8_t* columns[] = {reinterpret_cast<const uint8_t*>(&more)};
            size_t start = 0;
            writer.extend(columns, nullptr, 1, start);
          }
        }
        Writer next(replay->segment(), 1);  // after the first, on its lane
        CHECK(next.lease() == WriteStatus::ok);
        owner.reset();
        replay->disown();
        owner = owned(replay);
        CHECK(owner != nullptr && owner->size() <= 1000);
      }
}

template <typename Call>
std::string refused(Call&& call) {
  try {
    call();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

// A header that says another layout than its sizes make, or more than the segment has, is refused by whoever attaches.
void wrong_header_is_refused() {
  using Spoil = void (*)(Header&);
  const Spoil spoils[] = {
      [](Header& h) { h.geometry.slots *= 2; },
      [](Header& h) { h.geometry.slots = ~0u; },
      [](Header& h) { h.geometry.at_will += 1; },
      [](Header& h) { h.geometry.most = ~uint64_t(0); },
      [](Header& h) { h.geometry.most = h.geometry.capacity = 1 << 20; },
      [](Header& h) { h.geometry.lanes = 8000; },
      [](Header& h) { h.geometry.lanes = 0; },
      [](Header& h) { h.geometry.streams = 9; },
      [](Header& h) { h.geometry.desk = ~0u; },
      [](Header& h) { h.geometry.chunk = 0; },
      [](Header& h) { h.geometry.chunk = 32; },
      [](Header& h) { h.geometry.ahead = 0; },
      [](Header& h) { h.geometry.behind = ~0u; },
      [](Header& h) { h.geometry.n_step = 2; },
      [](Header& h) { h.geometry.stack = 2; },
      [](Header& h) { h.geometry.stack = 0; },
      [](Header& h) { h.geometry.burn_in = ~0u; },
      [](Header& h) { h.geometry.columns = 129; },
      [](Header& h) { h.geometry.columns = 2; },
      [](Header& h) { h.geometry.kind = Kind(9); },
      [](Header& h) { h.geometry.sampler = Sampler(2); },
      [](Header& h) { h.geometry.slot_bytes += 8; },
      [](Header& h) { h.geometry.slots_at = uint64_t(1) << 40; },
      [](Header& h) { h.geometry.json_bytes = uint64_t(1) << 40; },
      [](Header& h) { h.geometry.json_at += 1; },
      [](Header& h) { h.geometry.slot_bits = 64; },
      [](Header& h) { h.column[0].bytes = 1 << 30; },
      [](Header& h) { h.column[0].offset = 1 << 30; },
      [](Header& h) { h.column[0].plane_offset = uint64_t(1) << 40; },
      [](Header& h) { h.column[0].plane = 1; },
      [](Header& h) { h.column[0].align = 3; },
      [](Header& h) { h.column[0].per_item = 1; },
  };
  for (const Spoil spoil : spoils) {
    auto segment = make(Sampler::fifo, 1000, Kind::transition)->segment();
    spoil(View(segment->data()).header());
    const std::string why = refused([&] { Replay::of(segment); });
    CHECK(why.find(segment->name()) != std::string::npos && why.find("overwritten") != std::string::npos);
  }
}

void wrong_words_of_a_board_are_refused() {
  const auto word = [](const std::shared_ptr<Segment>& s, size_t i) -> uint64_t& { return reinterpret_cast<uint64_t*>(s->data())[i]; };
  constexpr size_t kCapacity = 1, kLayout = 4;  // words of its head
  for (const size_t at : {kCapacity, kLayout})
    for (const uint64_t wrong : {uint64_t(1) << 21, uint64_t(1) << 50, ~uint64_t(0)}) {
      auto segment = Board::create(4096);
      CHECK(refused([&] { Board board(segment); }) == "");
      word(segment, at) = wrong;
      const std::string why = refused([&] { Board board(segment); });
      CHECK(why.find(segment->name()) != std::string::npos && why.find("overwritten") != std::string::npos);
    }
  // After it was attached to.
  auto segment = Board::create(4096);
  Board board(segment);
  const uint8_t some[8] = {};
  board.publish(1, std::vector<std::pair<const uint8_t*, size_t>>{{some, 8}});
  CHECK(board.set_layout("[]", 2));
  word(segment, kLayout) = ~uint64_t(0);
  CHECK(refused([&] { board.layout_text(); }) != "");
  word(segment, kCapacity) = uint64_t(1) << 50;
  std::vector<uint8_t> out(1 << 22);
  for (size_t i = 5; i < 24; ++i)  // of the newest: its bytes
    if (word(segment, i) == 8) word(segment, i) = out.size();
  CHECK(board.capacity() == 4096 && board.read(0, out.data(), out.size()) == 0);
}

// A slot's per-item values may be asked for by any number that a row's head holds.
void wrong_cell_reads_no_other_memory() {
  Geometry g = geometry(Kind::unroll, 64, 4, 1, 1, 1, 2);
  g.sampler = Sampler::fifo;
  g.stride = g.cells = g.chunk_items = 2;
  auto replay = create(g, {Column{8, 8, 1, 1, 0, 0, 0, 0}, Column{1 << 16, 8, 0, 1, 0, 1, 0, 0}});
  const View& view = replay->view();
  view.head(view.geometry().slots - 1, 0).cell = 65535;
  std::vector<uint8_t> out(1 << 16);
  const ItemRef item{view.geometry().slots - 1, 0, 2, 0};
  gather_cells(view, view.header().column[1], &item, 1, out.data());
}

// The owner dies with the intake's note in a slot that has had another generation since, and is about to have a third.
void receipt_is_of_one_generation() {
  auto replay = make(Sampler::prioritized, 64);
  Receipts receipts(Segment::create(Receipts::bytes(2)));
  const View& view = replay->view();
  SlotMeta& meta = view.meta(3);
  const auto begin = [&](uint64_t generation) {  // as Book::grant() does
    const uint64_t last = SlotWord::unpack(meta.word.load()).generation;
    meta.past.store(last << 16 | meta.count.load());
    meta.word.store(SlotWord{SlotState::free, 0, generation}.pack());
    meta.count.store(0);
    meta.word.store(SlotWord{SlotState::leased, 0, generation}.pack());
  };
  for (const uint32_t published : {0u, 16u}) {
    for (const int later : {0, 1}) {
      meta.count.store(0);
      begin(5);
      receipts.account(1).committed.store(0);
      receipts.announce(view, 3, 16, Entry{1, 1 << 16, 16, 16, 0});
      meta.count.store(published);
      if (later == 1) {
        begin(6);
        meta.count.store(published == 0 ? 16 : 2);  // of another worker
      }
      receipts.recover(view);
      CHECK(receipts.account(1).committed.load() == published);
    }
  }
  meta.count.store(0);
  begin(5);
  receipts.account(1).committed.store(0);
  receipts.announce(view, 3, 16, Entry{1, 1 << 16, 16, 16, 0});
  meta.count.store(16);
  begin(6);
  meta.count.store(2);
  meta.past.store(uint64_t(6) << 16 | 2);  // the first store of the next grant
  receipts.recover(view);
  CHECK(receipts.account(1).committed.load() == 16);
}

void successor_of_a_waiting_owner_does_not_wait() {
  auto replay = make(Sampler::prioritized);
  const pid_t pid = fork();
  if (pid == 0) {
    const auto owner = owned(replay);
    for (;;) owner->wait_for_items(1'000'000'000);
  }
  const Header& h = replay->view().header();
  for (int tries = 0; h.sampler_waits.load() == 0; ++tries) {
    CHECK(tries < 10'000);
    usleep(1000);
  }
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  const auto owner = owned(replay);
  CHECK(owner != nullptr && h.sampler_waits.load() == 0);
}

// The first thread that no longer waits leaves the other waiting.
void every_waiting_thread_is_rung_for() {
  auto replay = make(Sampler::fifo);
  const auto owner = owned(replay);
  const Header& h = replay->view().header();
  std::atomic<bool> done{false};
  std::thread other([&] {
    while (!done) owner->wait_for_items(20'000'000'000);
  });
  while (h.sampler_waits.load() == 0) usleep(100);
  owner->wait_for_items(1'000'000);
  CHECK(h.sampler_waits.load() == 1);
  done = true;
  futex_wake(replay->view().header().bell);
  other.join();
  CHECK(h.sampler_waits.load() == 0);
}

void owner_without_memory_gives_the_replay_up() {
  auto replay = make(Sampler::prioritized);
  auto owner = owned(replay);
  Writer writer(replay->segment(), 1);
  CHECK(writer.lease() == WriteStatus::ok);
  const View& view = replay->view();
  view.lane(0).process.store(1);  // as of another process: the owner's thread serves it
  put(writer, 0, 5);
  exhausted = true;
  for (int tries = 0; !owner->yielded(); ++tries) {
    CHECK(tries < 10'000);
    futex_wake(view.header().bell);
    usleep(1000);
  }
  exhausted = false;
  owner = owned(replay);
  CHECK(owner != nullptr && owner->size() == 5 && owner->check() == 0.0);
  put(writer, 5, 100);
  CHECK(owner->size() == 105);
}

// Writers that come, write one row and go, one after the other: a full fifo holds its capacity all the same.
void fifo_fills_by_single_rows() {
  auto replay = make(Sampler::fifo, 1000);
  for (uint64_t i = 0; i < 1000; ++i) {
    Writer writer(replay->segment(), 1);
    CHECK(writer.lease() == WriteStatus::ok);
    put(writer, i, 1);
  }
  const auto owner = owned(replay);
  CHECK(owner->size() == 1000);
  Taken taken(1000);
  CHECK(owner->sample(0.4, taken.out) == SampleStatus::ok);
  for (uint64_t i = 0; i < 1000; ++i) CHECK(taken.values[i] == i);
  for (uint64_t i = 0; i < 40; ++i) {  // and what it empties is used again
    Writer writer(replay->segment(), 1);
    CHECK(writer.lease() == WriteStatus::ok);
    put(writer, i, 1);
  }
  CHECK(owner->size() == 40 && owner->check() == 0.0);
}

// Items go to another host, then to the sampler, then to the host again: each once.
void chunks_and_batches_take_turns() {
  auto replay = make(Sampler::fifo, 1000, Kind::transition);
  const auto owner = owned(replay);
  Writer writer(replay->segment(), 1);
  CHECK(writer.lease() == WriteStatus::ok);
  uint64_t written = 0, came = 0;
  const auto write = [&](size_t n) {
    for (; n > 0; --n, ++written) {
      const std::vector<const uint8_t*> columns = {reinterpret_cast<const uint8_t*>(&written)};
      const float reward = 1.0f;
      const uint8_t no = 0;
      CHECK(append(writer, columns, &reward, &no, &no, 1, [] { return false; }));
    }
    writer.publish(nullptr);
  };
  std::vector<ChunkHead> heads;
  std::vector<uint8_t> bodies;
  for (int round = 0; round < 20; ++round) {
    write(70);
    if (round % 2 == 0) {
      while (owner->take_chunks(0, 1000, 1000, heads, bodies) == SampleStatus::ok) {
        const uint8_t* body = bodies.data();
        for (const ChunkHead& head : heads) {
          uint64_t first;
          std::memcpy(&first, body + head.rows * sizeof(StepHead) + head.positions * sizeof(double), sizeof first);
          CHECK(first == came);
          came += head.items;
          body += head.bytes;
        }
      }
    } else {
      Taken taken(23);
      while (owner->sample(0.4, taken.out) == SampleStatus::ok)
        for (const uint64_t value : taken.values) CHECK(value == came++);
    }
    CHECK(owner->size() == written - 1 - came && owner->check() == 0.0);
  }
}

}  // namespace

int main() {
  first_thread = true;
  wrong_words_harm_no_process();
  wrong_header_is_refused();
  wrong_words_of_a_board_are_refused();
  wrong_cell_reads_no_other_memory();
  receipt_is_of_one_generation();
  successor_of_a_waiting_owner_does_not_wait();
  every_waiting_thread_is_rung_for();
  owner_without_memory_gives_the_replay_up();
  fifo_fills_by_single_rows();
  chunks_and_batches_take_turns();
  std::puts("ok");
}
