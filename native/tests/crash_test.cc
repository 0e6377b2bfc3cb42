// Every place where a writer or an owner can die: a process is killed before its first change of shared memory, then
// before its second, and so on until it survives to the end. After each death others take over and go on, and every
// invariant must hold. Built with -DAPEXRL_CRASH_POINTS; prints the places at which processes were killed.
#include <sys/mman.h>
#include <sys/wait.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

#include <map>

#include "crash_rig.h"
#include "take_over.h"

namespace {

constexpr uint64_t kAtOnce = 16;        // trials side by side: they mostly wait
constexpr uint64_t kMostPoints = 5000;  // no script below changes shared memory that often
constexpr int kCompleted = 42;          // exit status of a trial in which nobody died

// --- what must hold after a death

bool holds_items(const View& view, uint32_t slot) {
  const SlotMeta& meta = view.meta(slot);
  for (uint32_t p = meta.consumed.load(); p < meta.drained.load(); ++p)
    if (view.staged(slot)[p] >= 0.0) return true;
  return false;
}

// Waits until the owner has cleared up: `active` lanes are leased, and every slot that was ever used is free or, with
// items, in the eviction order, but for at most `held` of living workers. A lane's part-filled chunk of rows that a fifo
// sampler empties stays with it.
void settle(const Replay& replay, Owner& owner, uint32_t active, uint32_t held) {
  const View& view = replay.view();
  const bool goes_on = view.geometry().kind == Kind::rows && view.geometry().sampler == Sampler::fifo;
  for (int tries = 0;; ++tries) {
    owner.serve();
    uint32_t leased = 0, others = 0;
    for (uint32_t l = 0; l < view.geometry().lanes; ++l) leased += view.lane(l).active.load();
    const uint64_t used = std::min<uint64_t>(view.header().next_unused.load(), view.geometry().slots);
    for (uint32_t s = 0; s < used; ++s) {
      const SlotState state = SlotWord::unpack(view.meta(s).word.load()).state;
      const bool stays = state == SlotState::committed || (state == SlotState::leased && goes_on);
      others += state != SlotState::free && !(stays && holds_items(view, s));
    }
    if (leased == active && others <= held) return;
    CHECK(tries < 1000);  // 2 s: the dead are looked for every 0.2 s
    usleep(2000);
  }
}

// What was published is there, in so far as it must be; what else is there was being written. `all`: no more was
// published than the replay holds. `deaths`: of owners.
void check_contents(const Replay& replay, Owner& owner, bool all, uint32_t deaths) {
  const Geometry& g = replay.view().geometry();
  const std::set<uint64_t> found = contents(replay, owner);
  const uint32_t n = notes->published.load();
  CHECK(owner.check() == 0.0);
  if (g.sampler == Sampler::fifo) {  // an owner that died took at most one batch with it
    CHECK(found.size() <= kCapacity + g.lanes * kChunk);  // a worker that died may have published what it did not count
    const std::set<uint64_t> given(notes->taken, notes->taken + notes->given);
    uint32_t lost = 0;
    for (const uint64_t tag : found) CHECK(given.count(tag) == 0);
    for (uint32_t i = 0; i < n; ++i) lost += !found.count(notes->tag[i]) && !given.count(notes->tag[i]);
    CHECK(lost <= 16 * deaths && replay.view().header().lost.load() <= 16 * deaths);
    return;
  }
  CHECK(found.size() <= kCapacity);
  if (g.remover != Remover::fifo && !all) return;  // any item may have gone
  // Chunks go oldest first; but streams fill theirs side by side, one that is still being written stays, and the last
  // call of the dead may have published more than it came to say.
  const uint64_t slack = g.kind == Kind::rows ? 2 * kChunk + kBatch : 4 * kChunk * kStreams;
  for (uint32_t i = all || n <= kCapacity - slack ? 0 : uint32_t(n - (kCapacity - slack)); i < n; ++i)
    CHECK(found.count(notes->tag[i]) == 1);
}

// The trial's own process owns the replay now. `worker`: its own, which lived through everything; or empty.
void aftermath(Replay& replay, std::unique_ptr<Worker> worker, bool all, uint32_t deaths) {
  int holder = 0;
  auto owner = replay.own(holder);
  CHECK(owner != nullptr);
  settle(replay, *owner, worker ? 1 : 0, worker ? replay.view().geometry().desk + 2 * kStreams : 0);
  check_contents(replay, *owner, all, deaths);

  const bool fifo = replay.view().geometry().sampler == Sampler::fifo;
  const Help serve = [&] { return fifo ? void(draw(replay, *owner)) : owner->serve(), true; };
  if (worker) worker->write(kCapacity, serve);
  Worker(replay, kWorkers - 1).write(3 * kCapacity, serve);
  worker.reset();
  settle(replay, *owner, 0, 0);
  check_contents(replay, *owner, false, deaths);
  CHECK(fifo || draw(replay, *owner).size() == 16);

  const std::set<uint64_t> before = contents(replay, *owner);  // a successor finds the same
  owner.reset();
  replay.disown();
  owner = replay.own(holder);
  CHECK(owner != nullptr && contents(replay, *owner) == before && owner->check() == 0.0);
  settle(replay, *owner, 0, 0);
}

// --- deaths

// A child that runs `script` and dies before its n-th change of shared memory (0: never). `meanwhile` is called until
// it has ended. True when it lived to the end.
bool survives(int which, uint64_t n, const std::function<void()>& script, const std::function<void()>& meanwhile) {
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
#if defined(__linux__)
    prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
    crash_place = &notes->died[which];
    crash_countdown = n;
    script();
    _exit(0);
  }
  for (int status = 0;;) {
    const pid_t ended = waitpid(pid, &status, meanwhile ? WNOHANG : 0);
    if (ended == pid) {
      CHECK(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
      return WIFEXITED(status);
    }
    meanwhile();
  }
}

// Runs an owner beside a worker that writes whenever `turn` says so: takes over, samples, updates, evicts, gives up.
void rule(Replay& replay, std::atomic<uint32_t>& turn) {
  int holder = 0;
  const auto owner = replay.own(holder);
  CHECK(owner != nullptr);
  for (int round = 0; round < 4; ++round) {
    turn.store(1);
    while (turn.load() != 0) usleep(50);
    owner->serve();
    const std::vector<uint64_t> keys = draw(replay, *owner);
    const std::vector<double> powered(keys.size(), 2.0);
    size_t applied = 0, stale = 0;
    owner->update(keys.data(), powered.data(), keys.size(), applied, stale);
  }
  replay.disown();
}

bool rules(Replay& replay, Worker& worker, int which, uint64_t n) {
  static auto* turn = static_cast<std::atomic<uint32_t>*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  turn->store(0);
  return survives(which, n, [&] { rule(replay, *turn); }, [&] {
    if (turn->load() == 0) {
      usleep(20);
      return;
    }
    int patience = 20;  // it may have died meanwhile
    worker.write(30, [&] {
      worker.wait();
      return --patience > 0;
    });
    turn->store(0);
  });
}

// An arbitrary number from 1 to `most` for each n.
uint64_t scatter(uint64_t n, uint64_t most) { return 1 + n * 0x9e3779b97f4a7c15 % 1'000'003 % most; }

// --- trials: true when nobody died

bool worker_alone(const Flavour& flavour, uint64_t n) {
  auto replay = make(flavour, 2);
  const bool lived = survives(0, n, [&] { work(*replay, 1); }, nullptr);
  aftermath(*replay, nullptr, true, 0);
  return lived;
}

// Every slot was in use before: the worker takes what the owner puts on its desk.
bool worker_beside_owner(const Flavour& flavour, uint64_t n) {
  auto replay = make(flavour, 2);
  int holder = 0;
  const auto owner = replay->own(holder).get();
  const bool fifo = flavour.sampler == Sampler::fifo;
  Worker(*replay, 2).write(4 * kCapacity, [&] { return fifo ? void(draw(*replay, *owner)) : owner->serve(), true; });
  const bool lived = survives(0, n, [&] { work(*replay, 1); }, [&] { owner->serve(); });
  aftermath(*replay, nullptr, false, 0);
  return lived;
}

// On the only lane, so that the second worker clears up after the first, and dies at that too.
bool worker_after_worker(const Flavour& flavour, uint64_t n) {
  auto replay = make(flavour, 1);
  survives(0, scatter(n, 120), [&] { work(*replay, 1); }, nullptr);
  const bool lived = survives(1, n, [&] { work(*replay, 2); }, nullptr);
  aftermath(*replay, nullptr, true, 0);
  return lived;
}

bool owner_alone(const Flavour& flavour, uint64_t n) {
  auto replay = make(flavour, 2);
  auto worker = std::make_unique<Worker>(*replay, 1);
  worker->write(40, [] { return false; });
  const bool lived = rules(*replay, *worker, 0, n);
  aftermath(*replay, std::move(worker), false, 1);
  return lived;
}

// A worker has died, then an owner; the next owner dies while it takes over from both, or later.
bool owner_after_owner(const Flavour& flavour, uint64_t n) {
  auto replay = make(flavour, 3);
  auto worker = std::make_unique<Worker>(*replay, 1);
  worker->write(20, [] { return false; });
  survives(0, scatter(n + 5000, 120), [&] { work(*replay, 2); }, nullptr);
  rules(*replay, *worker, 1, scatter(n, 400));
  const bool lived = rules(*replay, *worker, 2, n);
  aftermath(*replay, std::move(worker), false, 2);
  return lived;
}

// An owner that changes every item and deletes some: the k-th change is under way when it dies, or the k-th deletion.
void edit(Replay& replay) {
  int holder = 0;
  const auto owner = replay.own(holder);
  CHECK(owner != nullptr);
  const View& view = replay.view();
  const Geometry& g = view.geometry();
  const std::vector<uint64_t> keys = *owner->keys();
  const auto tag = [&](uint64_t key) {
    const uint64_t slot = key >> g.offset_bits & ((uint64_t(1) << g.slot_bits) - 1), offset = key & ((uint64_t(1) << g.offset_bits) - 1);
    return tag_of(view, uint32_t(slot), uint32_t(g.behind + offset));
  };
  Rows rows(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) rows.set(i, tag(keys[i]) % kTags);  // becomes one of worker 0, who writes none
  const Header& h = view.header();
  CHECK(owner->change(keys.data(), keys.size(), {{&h.column[0], rows.data()[0]}, {&h.column[1], rows.data()[1]}}) == int64_t(keys.size()));
  for (size_t i = 0; i < keys.size(); i += 3) {
    give(rows.tag[i]);
    CHECK(owner->remove(&keys[i], 1) == 1);
  }
  replay.disown();
}

bool owner_edits(const Flavour& flavour, uint64_t n) {
  auto replay = make(flavour, 2);
  Worker(*replay, 1).write(40, [] { return false; });
  const bool lived = survives(0, n, [&] { edit(*replay); }, nullptr);
  int holder = 0;
  Owner* const owner = replay->own(holder).get();
  CHECK(owner != nullptr);
  const std::set<uint64_t> found = contents(*replay, *owner);  // no item is half of each
  const std::set<uint64_t> deleted(notes->taken, notes->taken + notes->given.load());
  uint32_t lost = 0;
  for (uint32_t i = 0; i < notes->published.load(); ++i) {
    const uint64_t tag = notes->tag[i], changed = tag % kTags;
    lost += !found.count(tag) && !found.count(changed) && !deleted.count(changed);
  }
  CHECK(lost <= 1 && owner->check() == 0.0);  // the one that was being changed
  CHECK(!lived || (lost == 0 && found.size() + deleted.size() == notes->published.load()));
  notes->published.store(0);  // the others are known now
  notes->given.store(0);
  aftermath(*replay, nullptr, true, 0);
  return lived;
}

// --- chunks of another host

struct Parcel {
  ChunkHead head;
  std::vector<uint8_t> body;
  uint64_t sequence, item;
};

// What a host sends: chunks of what a worker there published, a few positions or a slot at a time.
std::vector<Parcel> pack(const Flavour& flavour) {
  auto replay = make({flavour.name, flavour.kind, Sampler::fifo, Remover::fifo, false, false, flavour.ragged}, 1);
  int holder = 0;
  const auto owner = replay->own(holder);
  std::vector<Parcel> parcels;
  uint64_t items = 0;
  const Help take = [&] {
    std::vector<ChunkHead> heads;
    std::vector<uint8_t> bodies;
    const uint64_t most = parcels.size() % 3 == 0 ? 1 : 4000;
    while (owner->take_chunks(0, most, kCapacity, heads, bodies) == SampleStatus::ok) {
      size_t at = 0;
      for (const ChunkHead& head : heads) {
        parcels.push_back({head, {}, parcels.size(), items});
        parcels.back().body.assign(bodies.begin() + std::ptrdiff_t(at), bodies.begin() + std::ptrdiff_t(at + head.bytes));
        at += head.bytes;
        items += head.items;
      }
    }
    return true;
  };
  Worker worker(*replay, 1);
  for (int round = 0; round < 6; ++round) {
    worker.write(7, take);
    take();
  }
  return parcels;
}

// Runs an intake: commits every parcel but `lost`, whatever a predecessor has committed.
void bring(Replay& replay, const std::shared_ptr<Segment>& receipts, const std::vector<Parcel>& parcels, size_t lost) {
  Inbox inbox(replay.segment(), kStreams, receipts);
  CHECK(inbox.lease() == WriteStatus::ok);
  for (const Parcel& parcel : parcels) {
    if (parcel.sequence == lost) continue;
    const char* why = nullptr;
    bool sound = false;
    CommitStatus answer = CommitStatus::wait;
    for (int tries = 0; answer == CommitStatus::wait && tries < 2000; ++tries) {
      if (tries > 0) inbox.wait(1'000'000);
      answer = inbox.commit(uint32_t(parcel.head.source & 1), parcel.head, parcel.body.data(), parcel.body.size(), 1,
                            parcel.sequence, parcel.item, sound, why);
    }
    CHECK(answer == CommitStatus::done || answer == CommitStatus::repeated);
  }
}

bool intake(const Flavour& flavour, uint64_t n, bool ruled) {
  const std::vector<Parcel> parcels = pack(flavour);
  const size_t lost = n % 4 == 0 ? n / 4 % (parcels.size() - 1) : parcels.size();
  const uint64_t items = parcels.back().item + parcels.back().head.items, missing = lost < parcels.size() ? parcels[lost].head.items : 0;
  auto replay = make(flavour, 2);
  const auto receipts = Segment::create(Receipts::bytes(3));
  int holder = 0;
  Owner* const owner = ruled ? replay->own(holder).get() : nullptr;
  const auto meanwhile = owner ? std::function<void()>([&] { owner->serve(); }) : nullptr;
  const bool lived = survives(0, n, [&] { bring(*replay, receipts, parcels, lost); }, meanwhile);
  if (owner)  // it has seen the death before the next intake comes, or has not
    for (const int64_t until = now_ns() + (n % 2 == 0 ? 250'000'000 : 0); now_ns() < until; usleep(1000)) owner->serve();
  bring(*replay, receipts, parcels, lost);
  const Account& books = Receipts(receipts).account(1);
  CHECK(books.next_item.load() == items && books.missing.load() == missing && books.committed.load() == items - missing);
  CHECK(books.progress.load() == uint64_t(parcels.size()) << 16);
  if (lost < parcels.size()) notes->published.store(0);  // what is missing is not looked for
  settle(*replay, *replay->own(holder), 0, 0);
  CHECK(contents(*replay, *replay->own(holder)).size() == items - missing);
  aftermath(*replay, nullptr, true, 0);
  return lived;
}
bool intake_alone(const Flavour& flavour, uint64_t n) { return intake(flavour, n, false); }
bool intake_beside_owner(const Flavour& flavour, uint64_t n) { return intake(flavour, n, true); }

// Trials with a death at every `every`-th place, in processes of their own, until one ends without a death.
void enumerate(const char* name, uint64_t every, const std::function<bool(uint64_t)>& trial,
               std::map<std::string, int>& places) {
  static auto* all = static_cast<Notes*>(
      mmap(nullptr, sizeof(Notes) * kAtOnce, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  bool completed = false, failed = false;
  uint64_t deaths = 0;
  for (uint64_t n = 1; !completed && !failed && n < kMostPoints; n += every * kAtOnce) {
    const auto death = [&](uint64_t i) { return n + every * i + i % every; };  // not always at an odd place
    pid_t pids[kAtOnce];
    for (uint64_t i = 0; i < kAtOnce; ++i) {
      std::memset(static_cast<void*>(&all[i]), 0, sizeof(Notes));
      pids[i] = fork();
      if (pids[i] != 0) continue;
      notes = &all[i];
      alarm(20);  // a hang is a failure
      const bool lived = trial(death(i));
      _exit(lived ? kCompleted : 0);
    }
    for (uint64_t i = 0; i < kAtOnce; ++i) {
      int status = 0;
      waitpid(pids[i], &status, 0);
      const bool lived = WIFEXITED(status) && WEXITSTATUS(status) == kCompleted;
      completed |= lived;
      for (const CrashPoint& place : all[i].died) {
        if (place.file == nullptr) continue;
        const std::string file = place.file;
        ++places[file.substr(file.rfind('/') + 1) + ":" + std::to_string(place.line)];
        ++deaths;
      }
      if (lived || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) continue;
      failed = true;
      std::fprintf(stderr, "%s, death %llu: %s; died at", name, static_cast<unsigned long long>(death(i)),
                   WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? "hangs" : "fails");
      for (const CrashPoint& place : all[i].died)
        if (place.file) std::fprintf(stderr, " %s:%u", place.file, place.line);
      std::fputs("\n", stderr);
    }
  }
  if (failed) std::exit(1);
  if (!completed) std::exit((std::fprintf(stderr, "%s never ends\n", name), 1));
  std::printf("%s: %llu deaths\n", name, static_cast<unsigned long long>(deaths));
}

}  // namespace

// crash_test [STEP]: of the deaths, one in STEP (1). crash_test takeover: nobody dies, but one becomes the owner.
int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "takeover") {
    testing::take_over::others_go_on();
    std::puts("ok");
    return 0;
  }
  const uint64_t step = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  const Flavour flavours[] = {
      {"rows", Kind::rows},
      {"rows, fifo sampler", Kind::rows, Sampler::fifo},
      {"rows, proportional remover", Kind::rows, Sampler::prioritized, Remover::proportional},
      {"rows, heaps", Kind::rows, Sampler::max_heap, Remover::min_heap},
      {"transition, newest first", Kind::transition, Sampler::lifo, Remover::lifo},
      {"transition", Kind::transition},
      {"sequence", Kind::sequence},
      {"unroll, fifo sampler", Kind::unroll, Sampler::fifo},
      {"transition, chunks taken", Kind::transition, Sampler::fifo, Remover::fifo, true},
      {"transition, by age", Kind::transition, Sampler::prioritized, Remover::fifo, false, true},
      {"transition, ragged", Kind::transition, Sampler::prioritized, Remover::fifo, false, false, true},
      {"rows, fifo sampler, ragged", Kind::rows, Sampler::fifo, Remover::fifo, false, false, true},
  };
  std::map<std::string, int> places;
  for (const Flavour& flavour : flavours) {
    chunks_travel = flavour.travels;
    const auto run = [&](const char* name, bool (*trial)(const Flavour&, uint64_t), uint64_t every = 1) {
      const std::string whole = std::string(flavour.name) + ", " + name;
      if (flavour.ragged && trial != worker_alone) every *= 3;  // what differs is met often
      enumerate(whole.c_str(), every * step, [&](uint64_t n) { return trial(flavour, n); }, places);
    };
    run("worker", worker_alone);
    run("worker beside owner", worker_beside_owner);
    run("worker after worker", worker_after_worker);
    if (flavour.sampler == Sampler::prioritized && flavour.kind == Kind::rows)  // short: every death
      enumerate("owner edits", 1, [&](uint64_t n) { return owner_edits(flavour, n); }, places);
    const bool plain = flavour.sampler == Sampler::prioritized && flavour.remover == Remover::fifo;
    run("owner", owner_alone, plain ? 1 : 2);
    run("owner after owner", owner_after_owner, 7);  // what killed the first varies with it
    if (flavour.kind == Kind::rows || flavour.travels) continue;
    run("intake", intake_alone, flavour.kind == Kind::transition ? 2 : 7);
    run("intake beside owner", intake_beside_owner, 9);
  }
  for (const auto& [place, deaths] : places) std::printf("place %s %d\n", place.c_str(), deaths);
  std::puts("ok");
  return 0;
}
