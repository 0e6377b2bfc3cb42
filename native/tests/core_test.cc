// The native core without Python, for ASan and UBSan: random calls of one thread. Exits non-zero at the first broken
// invariant; threads_test.cc has what several threads do.
#include <cstdio>
#include <cstdlib>
#include <random>

#include "../board.h"
#include "../choices.h"
#include "../inbox.h"
#include "tagged_rows.h"

using namespace apexrl;
using namespace apexrl::testing;

namespace {

void random_rows(unsigned seed) {
  std::mt19937 random(seed);
  const uint64_t capacity = 1 + random() % 900;
  const double half_life = seed % 2 ? 1.0 + double(capacity) / 10.0 : 0.0;
  auto replay = create(decaying(geometry(Kind::rows, capacity, chunk_of(capacity), 2, 1), half_life, 2.0 * half_life), columns(false));
  const auto owner = owned(replay);
  CHECK(owner != nullptr && owned(replay).get() == owner.get());
  Writer writer(replay->segment(), 1), other(replay->segment(), 1);
  CHECK(writer.lease() == WriteStatus::ok && other.lease() == WriteStatus::ok);
  uint64_t next = 1;
  std::vector<double> powered;
  for (int call = 0; call < 200; ++call) {
    const size_t n = random() % 200;
    Rows rows(n);
    powered.assign(n, 0.0);
    for (size_t i = 0; i < n; ++i) {
      rows.fill(i, next++);
      powered[i] = double(random() % 1000) / 100.0 + 0.01;
    }
    Writer& w = call % 3 ? writer : other;
    for (size_t start = 0; start < n;) {
      if (w.extend(rows.data().data(), random() % 2 ? powered.data() : nullptr, n, start) == WriteStatus::wait) owner->serve();
    }
    if (next > 1) {
      Drawn drawn(1 + random() % 64, 1, false);
      CHECK(owner->sample(0.4, drawn.out) == SampleStatus::ok);
      drawn.check();
      std::vector<double> fresh(drawn.n, 0.5);
      size_t applied = 0, stale = 0;
      owner->update(drawn.keys.data(), fresh.data(), drawn.n, applied, stale);
      CHECK(applied == drawn.n && stale == 0);
    }
    CHECK(owner->size() <= capacity && owner->check() == 0.0);
  }
}

// Which episode each row of some streams belongs to; times begin with 1.
struct EpisodesOfStreams {
  std::vector<std::vector<uint32_t>> number;  // [stream][time]; 0 at time 0, where nothing is
  std::vector<uint8_t> ended, begins;         // of each stream: the next row is a final observation, or begins an episode
  explicit EpisodesOfStreams(uint32_t streams) : number(streams, {0}), ended(streams), begins(streams, 1) {}
  void add(uint32_t stream, bool ends) {
    number[stream].push_back(number[stream].back() + begins[stream]);
    begins[stream] = ended[stream];
    ended[stream] = ends && !ended[stream];
  }
};

// Goals in hindsight: of the first column, whose values are (time * streams + stream).
void check_goals(Owner& owner, const EpisodesOfStreams& episodes, uint32_t streams, uint32_t stack, uint32_t n_step, unsigned strategy) {
  Drawn drawn(32, stack, true);
  std::vector<uint8_t> relabelled(drawn.n);
  std::vector<uint64_t> goal(drawn.n), achieved(drawn.n * n_step);
  std::vector<int32_t> steps(drawn.n);
  drawn.out.hindsight = {0, GoalStrategy(strategy), 0.75, relabelled.data(), reinterpret_cast<uint8_t*>(goal.data()),
                         reinterpret_cast<uint8_t*>(achieved.data()), steps.data()};
  CHECK(owner.sample(0.4, drawn.out) == SampleStatus::ok);
  drawn.check();
  for (size_t i = 0; i < drawn.n; ++i) {
    const uint64_t here = drawn.tag[i * stack + stack - 1], stream = here % streams, time = here / streams;
    const auto& number = episodes.number[stream];
    CHECK(steps[i] >= 1 && uint32_t(steps[i]) <= n_step);
    for (uint32_t k = 0; k < n_step; ++k)
      CHECK(achieved[i * n_step + k] == (k < uint32_t(steps[i]) ? here + uint64_t(k + 1) * streams : 0));
    if (!relabelled[i]) {
      CHECK(goal[i] == 0);
      continue;
    }
    const uint64_t then = goal[i] / streams;
    CHECK(goal[i] % streams == stream && then < number.size() && number[then] == number[time]);
    if (GoalStrategy(strategy) != GoalStrategy::episode) CHECK(then > time);
    CHECK(number[then - 1] == number[then]);  // not the episode's first observation, which achieved nothing
  }
}

void random_streams(unsigned seed) {
  std::mt19937 random(seed);
  const uint32_t stack = 1 + random() % 4, n_step = 1 + random() % 5, streams = 1 + random() % 4;
  const uint64_t capacity = 40 + random() % 2000;
  const Geometry g = geometry(Kind::transition, capacity, chunk_of(capacity), 2, streams, stack, n_step);
  auto replay = create(decaying(g, seed % 2 ? 100.0 : 0.0, 0.0), columns(true));
  const auto owner = owned(replay);
  Writer writer(replay->segment(), streams);
  CHECK(writer.lease() == WriteStatus::ok);
  Rows rows(streams);
  std::vector<float> reward(streams, 1.0f);
  std::vector<uint8_t> terminated(streams), truncated(streams);
  const auto serve = [&] { return owner->serve(), true; };
  EpisodesOfStreams episodes(streams);
  const uint64_t longer = seed % 3 == 0 ? 20 : 1;  // episodes of several slots
  for (uint64_t t = 1; t < 1500; ++t) {
    for (uint32_t s = 0; s < streams; ++s) {
      rows.fill(s, t * streams + s);
      terminated[s] = random() % (20 * longer) == 0;
      truncated[s] = random() % (40 * longer) == 0;
      episodes.add(s, terminated[s] || truncated[s]);
    }
    CHECK(append(writer, rows.data(), reward.data(), terminated.data(), truncated.data(), streams, serve));
    if (t % 50 == 0 && owner->size() > 0) {
      Drawn drawn(32, stack, true);
      CHECK(owner->sample(0.4, drawn.out) == SampleStatus::ok);
      drawn.check();
      for (size_t i = 0; i < drawn.n; ++i) {
        const uint64_t here = drawn.tag[i * stack + stack - 1], there = drawn.next_tag[i * stack + stack - 1];
        CHECK(there > here && there <= here + uint64_t(n_step) * streams && there % streams == here % streams);
      }
      check_goals(*owner, episodes, streams, stack, n_step, unsigned(t / 50 % 3));
      CHECK(owner->check() == 0.0);
    }
  }
}

// Too few blocks for what the capacity would hold: the oldest chunks go rather than stop a worker, and nothing is torn.
void few_blocks(Kind kind) {
  ragged = true;
  auto replay = create(geometry(kind, 2000, 16, 2, 2, 1, 2), columns(kind != Kind::rows));
  replay->view().header().geometry.blocks = 90;
  const auto owner = owned(replay);
  Writer writer(replay->segment(), kind == Kind::rows ? 1 : 2);
  CHECK(writer.lease() == WriteStatus::ok);
  Rows rows(2);
  const float reward[2] = {1.0f, 1.0f};
  const uint8_t no[2] = {0, 0};
  for (uint64_t t = 1; t < 3000; ++t) {
    for (size_t i = 0; i < 2; ++i) rows.fill(i, t);
    int tries = 0;
    const auto serve = [&] { return owner->serve(), ++tries < 100; };
    if (kind == Kind::rows) {
      for (size_t start = 0; start < 2;)
        if (writer.extend(rows.data().data(), nullptr, 2, start) == WriteStatus::wait) CHECK(serve());
    } else {
      CHECK(append(writer, rows.data(), reward, no, no, 2, serve));
    }
    if (t % 100) continue;
    writer.publish(nullptr);
    Drawn drawn(16, 1, kind != Kind::rows);
    CHECK(owner->sample(0.4, drawn.out) == SampleStatus::ok && owner->check() == 0.0);
    drawn.check();
  }
  CHECK(owner->size() > 50 && owner->size() < 1000);
  ragged = false;
}

// What is compressed comes back, whatever it is; what is damaged never makes more bytes than a value has.
void compressed(unsigned seed) {
  std::mt19937_64 rng(seed);
  for (int trial = 0; trial < 300; ++trial) {
    const uint32_t n = uint32_t(rng() % 3000 + 1), values = uint32_t(1u << rng() % 9);
    std::vector<uint8_t> plain(n), block(n), back(n);
    for (auto& byte : plain) byte = uint8_t(rng() % values * (rng() % 8 != 0));
    const uint32_t bytes = compress(plain.data(), n, block.data());
    CHECK(bytes > 0 && bytes <= n);
    std::vector<uint8_t> exact(block.begin(), block.begin() + bytes);  // nothing beyond it may be read
    CHECK(decompress(exact.data(), bytes, back.data(), n) && back == plain);
    for (int damages = 0; damages < 20; ++damages) {
      exact[rng() % bytes] ^= uint8_t(1u << rng() % 8);
      if (!decompress(exact.data(), bytes, back.data(), n)) CHECK(std::all_of(back.begin(), back.end(), [](uint8_t b) { return b == 0; }));
    }
    for (uint32_t shorter = 0; shorter < bytes; shorter += bytes / 7 + 1) decompress(exact.data(), shorter, back.data(), n);
  }
}

// Chunks from one replay to another, each in a buffer of just its size; damaged ones before the sound ones.
void random_chunks(unsigned seed) {
  std::mt19937 random(seed);
  const Kind kind = Kind(1 + seed % 3);
  const uint32_t streams = 1 + random() % 3;
  const auto make = [&](Sampler sampler, uint64_t capacity) {
    Geometry g = geometry(kind, capacity, chunk_of(capacity), 2, 8, kind == Kind::transition ? 1 + seed % 4 : 1, 1 + seed % 5);
    g.sampler = sampler;
    auto all = columns(true);
    if (kind != Kind::transition) {
      g.burn_in = seed % 3;
      g.behind = g.burn_in;
      g.stride = kind == Kind::unroll ? g.n_step : 1 + seed % 2;
      g.chunk = uint32_t(round_up(g.chunk, g.stride));
      g.cells = kind == Kind::unroll ? g.chunk / g.stride : 2 * g.chunk / g.stride;
      g.chunk_items = g.cells;
      all.push_back(Column{24, 8, 0, 1, 0, 1, 0, 0});
    }
    return create(g, all);
  };
  auto here = make(Sampler::fifo, 4000), there = make(Sampler::prioritized, 500 + random() % 4000);
  const auto sender = owned(here), owner = owned(there);
  Writer writer(here->segment(), streams);
  Inbox inbox(there->segment(), streams, Segment::create(Receipts::bytes(1)));
  CHECK(writer.lease() == WriteStatus::ok && inbox.lease() == WriteStatus::ok);
  Rows rows(streams);
  std::vector<uint8_t> state(size_t(24) * streams, 7), ends(streams), none(streams);
  const std::vector<float> reward(streams, 1.0f);
  std::vector<ChunkHead> heads;
  std::vector<uint8_t> bodies;
  uint64_t sequence = 0, items = 0;
  for (uint64_t t = 1; t < 800; ++t) {
    for (uint32_t s = 0; s < streams; ++s) {
      rows.fill(s, t);
      ends[s] = random() % 15 == 0;
    }
    auto data = rows.data();
    if (kind != Kind::transition) data.push_back(state.data());
    CHECK(append(writer, data, reward.data(), ends.data(), none.data(), streams, [] { return false; }));
    if (random() % 10 != 0 || sender->take_chunks(0, 1 + random() % 50'000, 4000, heads, bodies) != SampleStatus::ok) continue;
    size_t at = 0;
    for (const ChunkHead& head : heads) {
      const std::vector<uint8_t> body(bodies.begin() + std::ptrdiff_t(at), bodies.begin() + std::ptrdiff_t(at + head.bytes));
      at += head.bytes;
      const auto commit = [&](const ChunkHead& h, const std::vector<uint8_t>& bytes) {
        const char* why = nullptr;
        bool sound = false;
        CommitStatus answer = CommitStatus::wait;
        while ((answer = inbox.commit(uint32_t(h.source) % streams, h, bytes.data(), bytes.size(), 0, sequence, items, sound, why)) == CommitStatus::wait)
          owner->serve();
        return answer;
      };
      for (int damages = 0; damages < 20; ++damages) {  // of heads: what they say must fit the body
        ChunkHead bad = head;
        uint32_t* const words[] = {&bad.positions, &bad.rows, &bad.cells, &bad.items};
        *words[random() % 4] ^= 1u << random() % 32;
        std::vector<uint8_t> bytes = body;
        if (random() % 2) bytes.resize(random() % (2 * body.size()));
        CHECK(commit(bad, bytes) == CommitStatus::refused);
      }
      CHECK(commit(head, body) == CommitStatus::done && commit(head, body) == CommitStatus::repeated);
      CHECK(commit(head, std::vector<uint8_t>()) == CommitStatus::repeated);
      ++sequence;
      items += head.items;
      if (random() % 4) continue;
      std::vector<uint8_t> bytes = body;  // of bodies: refused, or something that an actor might have sent
      bytes[random() % (head.rows * sizeof(StepHead) + head.positions * sizeof(double))] ^= uint8_t(1u << random() % 8);
      if (commit(head, bytes) == CommitStatus::done) ++sequence, items += head.items;
      CHECK(owner->check() == 0.0);
    }
  }
  CHECK(items > 100 && there->view().header().inserted.load() == items);
  if (kind != Kind::transition) return;
  Drawn drawn(64, there->view().geometry().stack, true);
  CHECK(owner->sample(0.4, drawn.out) == SampleStatus::ok);
  drawn.check();
}

void board() {
  Board board(Board::create(4096));
  std::vector<uint8_t> out(4096);
  for (uint64_t version = 1; version < 200; ++version) {
    std::vector<uint8_t> data(4096, uint8_t(version));
    board.publish(version, std::vector<std::pair<const uint8_t*, size_t>>{{data.data(), 1000}, {data.data(), 3096}});
    CHECK(board.read(version - 1, out.data(), out.size()) == version && out == data);
    CHECK(board.read(version, out.data(), out.size()) == 0);
  }
}

void choices(unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  const size_t rows = rng() % 40, before = rng() % 3, n = 1 + rng() % 9, step = 1 + rng() % 3, width = before + n;
  std::vector<float> logits(rows * width), log_prob(rows, 1.0f);  // of exactly as many: nothing beyond is touched
  std::vector<double> uniform(rows);
  std::vector<int64_t> chosen(rows * step, -1);
  for (auto& one : logits) one = normal(rng);
  for (auto& one : uniform) one = double(rng() % 1000) / 1000.0;
  if (rows > 0) draw_choices(logits.data() + before, rows, n, width, uniform.data(), chosen.data(), step, log_prob.data());
  for (size_t row = 0; row < rows; ++row) {
    const int64_t choice = chosen[row * step];
    CHECK(choice >= 0 && size_t(choice) < n && log_prob[row] <= 1.0f + 1e-5f);
    for (size_t i = 1; i < step; ++i) CHECK(chosen[row * step + i] == -1);
  }
}

}  // namespace

// core_test [STEP]: of the seeds, one in STEP (1).
int main(int argc, char** argv) {
  const unsigned step = argc > 1 ? unsigned(std::strtoul(argv[1], nullptr, 10)) : 1;
  const auto seeds = [&](unsigned count, void (*test)(unsigned)) {
    for (unsigned seed = 0; seed < count; seed += step) {
      ragged = seed % 4 >= 2;
      test(seed);
    }
    ragged = false;
  };
  seeds(12, random_rows);
  seeds(8, random_streams);
  seeds(12, random_chunks);
  for (const Kind kind : {Kind::rows, Kind::transition}) few_blocks(kind);
  seeds(25, choices);
  for (unsigned seed = 0; seed < 3; ++seed) compressed(seed);
  board();
  std::puts("ok");
  return 0;
}
