// Chunks as a hostile host might send them, against what takes them in (chunks.h, inbox.h). An input is a little program:
// which replay, then chunks that are cut out of a sound stream and damaged, or are nothing but the input's bytes.
//
// With clang and -fsanitize=fuzzer: `make fuzz`. With -DAPEXRL_FUZZ_ALONE a program of its own: mutations from a fixed seed.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>

#include "../inbox.h"
#include "../replay.h"

using namespace apexrl;

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                        \
    }                                                                      \
  } while (0)

namespace {

constexpr uint32_t kStreams = 2, kAccounts = 2, kFlavours = 7;

// The input's bytes, then zeros.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}
  bool more() const { return at_ < end_; }
  template <typename T>
  T take() {
    T value{};
    const size_t n = std::min(sizeof value, size_t(end_ - at_));
    if (n > 0) std::memcpy(&value, at_, n);
    at_ += n;
    return value;
  }

 private:
  const uint8_t *at_, *end_;
};

std::shared_ptr<Replay> make_replay(uint32_t flavour) {
  Geometry g{};
  const bool packed = flavour == 6, ragged = flavour == 5 || packed;
  g.kind = flavour < 2 || ragged ? Kind::transition : flavour == 2 ? Kind::sequence : flavour == 3 ? Kind::unroll : Kind::rows;
  const bool stepwise = g.kind == Kind::sequence || g.kind == Kind::unroll;
  g.sampler = flavour == 3 ? Sampler::fifo : Sampler::prioritized;
  g.capacity = 24;
  g.chunk = 8;
  g.stack = flavour == 1 ? 3 : 1;
  g.n_step = stepwise ? 4 : flavour == 1 ? 3 : 1;
  g.burn_in = g.kind == Kind::sequence ? 2 : 0;
  g.stride = g.kind == Kind::unroll ? 4 : stepwise ? 2 : 0;
  g.cells = stepwise ? 3 : 0;  // fewer than items may begin in a slot: it ends early
  g.chunk_items = stepwise ? g.cells : g.chunk;
  g.behind = g.kind == Kind::rows ? 0 : g.burn_in + g.stack - 1;
  g.ahead = g.kind == Kind::rows ? 0 : g.n_step;
  g.lanes = 1;
  g.streams = g.kind == Kind::rows ? 1 : kStreams;
  g.gamma = 0.9;
  g.alpha = 0.6;
  g.eps = 1e-3;
  g.seed = 1;
  std::vector<Column> columns{Column{4, 4, 1, 1, 0, 0, 0, 0}, Column{300, 1, 1, 1, 0, 0, 0, 0}};
  if (stepwise) columns.push_back(Column{24, 8, 0, 1, 0, 1, 0, 0});
  if (ragged) columns.insert(columns.end(), {Column{600, 2, 1, 1, 0, 0, 0, 0, 4, packed ? 1u : 2u, packed}, Column{4, 4, 1, 1, 0, 0, 0, 0}});
  return Replay::create(g, columns, "{}", 0, 0.0, 0.0, "");
}

// A replay with an inbox, and its owner when one is needed: that has a thread. `begin` makes all of them as they were at first, without making new memory.
class Rig {
 public:
  std::shared_ptr<Replay> replay;
  std::shared_ptr<Owner> owner;
  std::shared_ptr<Segment> receipts;
  std::unique_ptr<Inbox> inbox;

  explicit Rig(uint32_t flavour)
      : replay(make_replay(flavour)),
        receipts(Segment::create(Receipts::bytes(kAccounts))),
        streams_(flavour == 4 ? 1 : kStreams),
        first_(replay->segment()->data(), replay->segment()->data() + replay->segment()->nbytes()) {
    begin();
  }
  void begin() {
    inbox.reset();
    owner.reset();
    replay->disown();
    std::memcpy(replay->segment()->data(), first_.data(), first_.size());
    std::memset(receipts->data(), 0, receipts->nbytes());
    inbox = std::make_unique<Inbox>(replay->segment(), streams_, receipts);
    CHECK(inbox->lease() == WriteStatus::ok);
  }
  void own() {
    int holder = 0;
    owner = replay->own(holder);
    CHECK(owner != nullptr);
  }

 private:
  uint32_t streams_;
  std::vector<uint8_t> first_;
};

struct Sent {
  ChunkHead head;
  std::vector<uint8_t> body;
};

// Row `i` of an endless stream whose episodes end where `seed` says.
struct Stream {
  const Geometry& g;
  uint64_t seed;
  std::vector<StepHead> rows;

  StepHead at(int64_t i) {
    if (i < 0) return StepHead{0.0f, kAbsent, 0, 0};
    while (int64_t(rows.size()) <= i) {
      const size_t n = rows.size();
      const uint64_t dice = (seed + n) * 0x9e3779b97f4a7c15u >> 56;
      const StepHead before = n > 0 ? rows[n - 1] : StepHead{0.0f, kFinal, 0, 0};
      StepHead now{float(n), 0, 0, 0};
      if (!(before.flags & kFinal)) now.age = uint8_t(std::min(before.age + 1, 255));
      if (before.flags & (kTerminated | kTruncated)) now.flags = kFinal;
      else if (dice < 40) now.flags = dice < 20 ? kTerminated : kTruncated;
      if (!(now.flags & kFinal) && (g.stride == 0 || n % g.stride == 0)) now.flags |= kStart;
      rows.push_back(now);
    }
    return rows[size_t(i)];
  }
};

// What a Writer would have sent of the stream's positions [first, first + positions).
Sent cut(const View& view, Stream& stream, uint32_t first, uint32_t positions, uint8_t slot_generation) {
  const Geometry& g = view.geometry();
  Sent sent{ChunkHead{0, slot_generation, first, positions, g.behind + positions + g.ahead, 0, 0, 0}, {}};
  std::vector<StepHead> heads(sent.head.rows);
  std::vector<double> staged(positions, -1.0);
  for (uint32_t r = 0; r < sent.head.rows; ++r) heads[r] = stream.at(int64_t(first) + r - g.behind);
  for (uint32_t p = 0; p < positions; ++p) {
    StepHead& head = heads[g.behind + p];
    if (!(head.flags & kStart)) continue;
    head.flags |= kItem;
    head.cell = uint16_t(g.cells > 0 ? sent.head.items : 0);
    staged[p] = 1.5;
    ++sent.head.items;
  }
  if (g.kind == Kind::transition)
    for (StepHead& head : heads) head.flags &= uint8_t(~kStart);
  sent.head.cells = g.cells > 0 ? sent.head.items : 0;
  const std::vector<RaggedColumn> ragged = ragged_columns(view);
  const bool packed = !ragged.empty() && ragged[0].compressed;
  uint8_t block[600];
  const auto length = [&](uint32_t r) {  // of 600 equal bytes, or as it comes
    uint8_t plain[600];
    if (packed) return std::memset(plain, int((first + r) & 0xff), sizeof plain), int32_t(compress(plain, sizeof plain, block));
    return int32_t((first + r) % 5 == 0 ? 0 : (first + r) * 37 % 301);
  };
  sent.head.bytes = chunk_bytes(view, sent.head.rows, positions, sent.head.cells);
  for (const RaggedColumn& c : ragged)
    for (uint32_t r = 0; r < sent.head.rows; ++r) sent.head.bytes += ragged_bytes(c, length(r));
  sent.body.resize(sent.head.bytes);
  uint8_t* out = sent.body.data();
  std::memcpy(out, heads.data(), heads.size() * sizeof(StepHead));
  out += heads.size() * sizeof(StepHead);
  if (positions > 0) std::memcpy(out, staged.data(), staged.size() * sizeof(double));
  out += staged.size() * sizeof(double);
  for (uint32_t c = 0; c < g.columns; ++c) {
    const Column& column = view.header().column[c];
    const bool lengths = !ragged.empty() && c == ragged[0].lengths();
    for (uint32_t r = 0; !column.ragged && r < (column.per_item ? sent.head.cells : sent.head.rows); ++r, out += column.bytes) {
      const int32_t elements = length(r);
      lengths ? std::memcpy(out, &elements, sizeof elements) : std::memset(out, int((first + r) & 0xff), column.bytes);
    }
  }
  for (const RaggedColumn& c : ragged)
    for (uint32_t r = 0; r < sent.head.rows; ++r) {
      const uint32_t n = ragged_bytes(c, length(r));
      packed ? std::memcpy(out, block, n) : std::memset(out, int((first + r) & 0xff), n);
      out += n;
    }
  return sent;
}

struct Counts {
  uint64_t done = 0, refused = 0, repeated = 0, waited = 0, joined = 0, sampled = 0;
} counts;

// Draws what was taken in: windows of it are read, and nothing beyond them.
void sample(Rig& rig) {
  const View& view = rig.replay->view();
  const Geometry& g = view.geometry();
  rig.own();
  rig.owner->serve();
  CHECK(rig.owner->check() == 0.0 && rig.owner->size() <= g.most + g.chunk_items);  // there is room: asked for once a slot
  if (rig.owner->size() == 0) return;
  const size_t n = 2, steps = g.kind == Kind::transition ? 1 : g.burn_in + g.n_step;
  std::vector<std::vector<uint8_t>> columns(g.columns), later(g.columns);
  Outputs out;
  for (uint32_t c = 0; c < g.columns; ++c) {
    columns[c].resize(n * frames_of(g, view.header().column[c]) * view.header().column[c].bytes * g.stack);
    later[c].resize(columns[c].size());
    out.column.push_back(columns[c].data());
    out.next_column.push_back(g.kind == Kind::transition ? later[c].data() : nullptr);
  }
  std::vector<float> reward(n * steps), discount(n * steps), weights(n);
  std::vector<uint8_t> mask(n * steps), starts(n * (steps + 1));
  std::vector<uint64_t> keys(n);
  std::vector<double> probabilities(n);
  out.n = n;
  out.reward = reward.data();
  out.discount = discount.data();
  out.keys = keys.data();
  out.probabilities = probabilities.data();
  out.weights = weights.data();
  out.mask = mask.data();
  out.first = starts.data();
  counts.sampled += rig.owner->sample(0.4, out) == SampleStatus::ok;
}

// Damages of a chunk that was sound: of its head, of its body, of its length.
void damage(Bytes& in, Sent& sent) {
  for (uint8_t n = in.take<uint8_t>() % 4; n > 0; --n) {
    const uint16_t where = in.take<uint16_t>();
    const uint8_t what = in.take<uint8_t>();
    if (where < sizeof(ChunkHead)) {
      reinterpret_cast<uint8_t*>(&sent.head)[where] ^= what;
    } else if (where == 0xffff) {
      sent.body.resize(sent.body.size() * what / 128);
    } else if (!sent.body.empty()) {
      sent.body[(where - sizeof(ChunkHead)) % sent.body.size()] ^= what;
    }
  }
}

// A chunk that is nothing but the input's bytes; as long as its head says, where that is not much.
Sent raw(Bytes& in, const View& view) {
  Sent sent{in.take<ChunkHead>(), {}};
  sent.head.positions &= 0x1ffff;
  sent.head.rows &= 0x1ffff;
  const uint64_t bytes = chunk_bytes(view, sent.head.rows, sent.head.positions, sent.head.cells & 0xff);
  sent.body.resize(std::min<uint64_t>(bytes, 4096));
  for (size_t i = 0; i < sent.body.size() && in.more(); ++i) sent.body[i] = in.take<uint8_t>();
  return sent;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static std::unique_ptr<Rig> rigs[kFlavours];  // used again while nothing was stored in them: an input stands alone
  Bytes in(data, size);
  const uint32_t flavour = in.take<uint8_t>() % kFlavours;
  if (!rigs[flavour]) rigs[flavour] = std::make_unique<Rig>(flavour);
  Rig& rig = *rigs[flavour];
  const View& view = rig.replay->view();
  Stream stream{view.geometry(), in.take<uint8_t>(), {}};
  Receipts books(rig.receipts);
  uint64_t sequence[kAccounts] = {}, items[kAccounts] = {};
  uint32_t next = 0;
  const bool sampled = stream.seed % 16 == 0;  // an owner costs more than all the rest
  bool stored = false;
  for (int n = 0; n < 8 && in.more(); ++n) {
    const uint8_t how = in.take<uint8_t>();
    const uint32_t account = how & 1, lane = how >> 1 & 1;
    if ((how & 0xf0) == 0xf0) {
      rig.inbox->close(flavour == 4 ? 0 : lane);
      continue;
    }
    const uint8_t shape = in.take<uint8_t>();
    const uint32_t first = (how & 4) ? in.take<uint8_t>() : next, positions = 1 + shape % 20;
    Sent sent = (how & 8) ? raw(in, view) : cut(view, stream, first, positions, shape / 64);
    if ((how & 8) == 0) damage(in, sent);
    uint64_t number = sequence[account], item = items[account];
    if ((how & 0x30) == 0x30) number += in.take<uint64_t>(), item += in.take<uint64_t>();
    if ((how & 0x30) == 0x20 && number > 0) --number;  // again
    const std::vector<uint8_t> body(sent.body);  // of exactly its size: the sanitizer sees every byte beyond
    const Account& entry = books.account(account);
    const uint64_t progress = entry.progress.load(), committed = entry.committed.load();
    const uint64_t inserted = view.header().inserted.load(), next_item = entry.next_item.load();
    const bool sound = flaw_of(view, sent.head, body.data(), body.size(), least_priority(view)) == nullptr;
    CommitStatus answer = CommitStatus::wait;
    const char* why = nullptr;
    bool checked = false;
    for (int turn = 0; turn < 20 && answer == CommitStatus::wait; ++turn) {
      answer = rig.inbox->commit(flavour == 4 ? 0 : lane, sent.head, body.data(), body.size(), account, number, item, checked, why);
      if (answer == CommitStatus::wait && !sampled) break;
      if (answer == CommitStatus::wait) sample(rig);
      counts.waited += answer == CommitStatus::wait;
    }
    stored |= answer != CommitStatus::refused && answer != CommitStatus::repeated;
    if (answer == CommitStatus::refused) {
      ++counts.refused;
      CHECK(why != nullptr && entry.progress.load() == progress && entry.committed.load() == committed);
      CHECK(view.header().inserted.load() == inserted && entry.next_item.load() == next_item);
    } else if (answer == CommitStatus::repeated) {
      ++counts.repeated;
      CHECK(number < progress >> 16 && view.header().inserted.load() == inserted);
    } else {
      CHECK(sound && why == nullptr && flavour != 4);
      if (answer == CommitStatus::wait) break;  // nobody makes room
      ++counts.done;
      counts.joined += first == next && next > 0;
      CHECK(entry.progress.load() == (number + 1) << 16 && entry.next_item.load() == item + sent.head.items);
      CHECK(entry.committed.load() - committed == sent.head.items && view.header().inserted.load() - inserted == sent.head.items);
      sequence[account] = number + 1;
      items[account] = item + sent.head.items;
      next = first + positions;
    }
    if ((how & 0xf0) == 0xe0 && stored && sampled) sample(rig);
  }
  if (stored) {
    if (sampled) sample(rig);
    rig.begin();
  }
  return 0;
}

#ifdef APEXRL_FUZZ_ALONE
int main(int argc, char** argv) {
  const long inputs = argc > 1 ? std::atol(argv[1]) : 20'000;
  std::mt19937 random(1);
  std::vector<uint8_t> input;
  for (long n = 0; n < inputs; ++n) {
    if (n % 4 == 0) {  // a new one; else the last one, with changes
      input.resize(2 + random() % 120);
      for (uint8_t& byte : input) byte = uint8_t(random() % 3 ? random() % 16 : random());  // mostly of sound chunks that follow
      input[0] = uint8_t(n / 4);
    }
    for (int k = 0; k < 3; ++k) input[random() % input.size()] ^= uint8_t(1u << random() % 8);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("done %llu refused %llu repeated %llu waited %llu joined %llu sampled %llu\nok\n", (unsigned long long)counts.done,
              (unsigned long long)counts.refused, (unsigned long long)counts.repeated, (unsigned long long)counts.waited,
              (unsigned long long)counts.joined, (unsigned long long)counts.sampled);
  return 0;
}
#endif
