// A block of memory shared by local processes. The kernel frees it with the last of them.
//
// Linux: memfd_create, or an unlinked file if a seccomp profile refuses it. Another process opens /proc/PID/fd/FD and
// checks the uuid, so both forked and later processes can attach. Elsewhere, or on request: a file, unlinked on close.
//
// Locks are POSIX record locks on bytes beyond the end: the kernel drops them at the holder's death, keeps them
// through SIGSTOP, and does not pass them to forked children. No process waits for one. They belong to a process,
// not to a handle, and vanish when *any* descriptor of the file is closed; hence one Segment per uuid per process.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__linux__)
#include <linux/magic.h>
#include <sys/vfs.h>
#endif

#include "committed_memory.h"
#include "process.h"

namespace apexrl {

using Uuid = std::array<uint8_t, 16>;

class Segment {
 public:
  static constexpr size_t kHead = 4096;  // magic, uuid, size; the user's bytes follow

  // `directory` empty: memfd where there is one. `at_once`: where memory must be committed before it is written, so
  // many of the first bytes are; the rest is the caller's to commit() before it writes there.
  static std::shared_ptr<Segment> create(size_t nbytes, const std::string& directory = "", size_t at_once = SIZE_MAX) {
    auto segment = std::shared_ptr<Segment>(new Segment());
    std::random_device random;
    for (auto& byte : segment->uuid_) byte = uint8_t(random());
    segment->open_new(directory);
    segment->map(kHead + nbytes, true, kHead + std::min(nbytes, at_once));
    Head* head = segment->head();
    head->strict = segment->strict_;
    head->nbytes = nbytes;
    std::memcpy(head->uuid, segment->uuid_.data(), 16);
    std::memcpy(head->magic, kMagic, 8);
    segment->name_ = "shared memory " + (segment->path_.empty() ? place(getpid(), segment->fd_) : segment->path_);
    remember(segment);
    return segment;
  }

  static std::shared_ptr<Segment> attach(int pid, int fd, const Uuid& uuid, const std::string& path) {
    if (auto known = find(uuid)) return known;
    const std::string where = path.empty() ? place(pid, fd) : path;
    auto segment = std::shared_ptr<Segment>(new Segment());
    segment->name_ = "shared memory " + where;
    segment->uuid_ = uuid;
    segment->fd_ = open_known(where);
    if (segment->fd_ < 0)
      throw std::runtime_error("cannot attach to shared memory of process " + std::to_string(pid) + " (" + where +
                               ": " + std::strerror(errno) +
                               "): that process has ended, belongs to another user or lives in another container");
    struct stat info;
    Head head;
    if (fstat(segment->fd_, &info) != 0 || size_t(info.st_size) < kHead ||
        pread(segment->fd_, &head, sizeof head, 0) != ssize_t(sizeof head) ||
        std::memcmp(head.magic, kMagic, 8) != 0 || std::memcmp(head.uuid, uuid.data(), 16) != 0 ||
        size_t(info.st_size) < kHead + head.nbytes)
      throw not_the_one(where);
    segment->strict_ = head.strict != 0;
    segment->map(kHead + head.nbytes, false, 0);
    remember(segment);
    return segment;
  }

  ~Segment() {
    if (base_ != nullptr) munmap(base_, size_);
    if (fd_ >= 0) ::close(fd_);
    if (!path_.empty() && creator_fork_ == fork_generation()) ::unlink(path_.c_str());
  }
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  uint8_t* data() const { return base_ + kHead; }
  size_t nbytes() const { return size_ - kHead; }
  const Uuid& uuid() const { return uuid_; }
  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  // For messages.
  const std::string& name() const { return name_; }

  // Whether the system may refuse memory only when it is first written, and then by killing who writes (SIGBUS): that
  // of a file, whose file system may be full, and all of it under strict overcommit.
  bool strict() const { return strict_; }

  // For one on a disk that is larger than memory: from now on a fault of this process reads its own page alone, not the
  // megabytes around it that huge pages would bring.
  void read_by_page() {
#if defined(MADV_NOHUGEPAGE)
    madvise(base_, size_, MADV_NOHUGEPAGE);
#endif
    madvise(base_, size_, MADV_RANDOM);
    by_page_.store(true, std::memory_order_relaxed);
  }
  bool reads_by_page() const { return by_page_.load(std::memory_order_relaxed); }

  // If `strict`, commits the memory of bytes [from, to) before it is written. False: the system refused.
  bool commit(size_t from, size_t to) {
    return !strict_ || allocate(fd_, kHead + from, kHead + to);
  }

  // Bytes that will be touched when it is full, with what its users keep beside it. All of it, unless said.
  void promise(size_t nbytes) { needs_ = nbytes; }
  // Bytes promised to the in-memory segments of this process and not yet in use.
  static uint64_t promised() {
    return promised([](const Segment& s) { return s.in_memory(); });
  }
  // The same for segments in this one's file system.
  uint64_t promised_beside() const {
    struct stat here;
    if (fstat(fd_, &here) != 0) return 0;
    return promised([&](const Segment& s) {
      struct stat there;
      return fstat(s.fd_, &there) == 0 && there.st_dev == here.st_dev;
    });
  }
  // Whether it takes memory, not room on a disk.
  bool in_memory() const {
#if defined(__linux__)
    struct statfs system;
    return fstatfs(fd_, &system) != 0 || system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC;
#else
    return path_.empty();
#endif
  }
  // Free bytes of its file system; none if that is not limited.
  std::optional<uint64_t> free() const {
    struct statvfs system;
    if (fstatvfs(fd_, &system) != 0 || system.f_blocks == 0) return std::nullopt;
    return uint64_t(system.f_bavail) * system.f_frsize;
  }

  // True: this process acquired lock `index` now.
  bool try_lock(uint32_t index) {
    std::lock_guard guard(mutex());
    forget_inherited();
    if (held_.count(index) != 0) return false;
    struct flock lock = range(index, F_WRLCK);
    if (fcntl(fd_, F_SETLK, &lock) != 0) return false;
    held_.insert(index);
    return true;
  }

  void unlock(uint32_t index) {
    std::lock_guard guard(mutex());
    forget_inherited();
    if (held_.erase(index) == 0) return;
    struct flock lock = range(index, F_UNLCK);
    fcntl(fd_, F_SETLK, &lock);
  }

  // Whether this process holds lock `index`.
  bool holds(uint32_t index) {
    std::lock_guard guard(mutex());
    forget_inherited();
    return held_.count(index) != 0;
  }

  // Whether any living process holds it.
  bool held(uint32_t index) { return holder(index) != 0; }

  // That process's pid, for messages alone: pids of two containers may be equal. 0: nobody holds it; -1: it has no pid
  // in this process's namespace.
  int holder(uint32_t index) {
    std::lock_guard guard(mutex());
    forget_inherited();
    if (held_.count(index) != 0) return getpid();
    struct flock lock = range(index, F_WRLCK);
    if (fcntl(fd_, F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return 0;
    return lock.l_pid > 0 ? lock.l_pid : -1;
  }

  static std::mutex& mutex() {
    static std::mutex* one = new std::mutex();  // replaced in a forked child, where its holder does not exist
    static const int registered = pthread_atfork(
        [] { one->lock(); }, [] { one->unlock(); }, [] { one = new std::mutex(); });
    (void)registered;
    return *one;
  }

 private:
  static constexpr char kMagic[9] = "APEXSEG2";
  struct Head {
    char magic[8];
    uint8_t uuid[16];
    uint64_t nbytes;
    uint64_t strict;
  };

  static std::string place(int pid, int fd) { return "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd); }

  Segment() : creator_fork_(fork_generation()), locks_fork_(fork_generation()) {}

  Head* head() const { return reinterpret_cast<Head*>(base_); }

  static std::map<Uuid, std::weak_ptr<Segment>>& registry() {
    static auto* all = new std::map<Uuid, std::weak_ptr<Segment>>();
    return *all;
  }
  static void remember(const std::shared_ptr<Segment>& segment) {
    std::lock_guard guard(mutex());
    registry()[segment->uuid_] = segment;
  }
  static std::shared_ptr<Segment> find(const Uuid& uuid) {
    std::lock_guard guard(mutex());
    auto entry = registry().find(uuid);
    return entry == registry().end() ? nullptr : entry->second.lock();
  }

  static std::runtime_error not_the_one(const std::string& where) {
    return std::runtime_error("the shared memory at " + where +
                              " is not the one this handle names: its creator has ended");
  }

  // Opens what stands at `where` if it looks like a segment; -1 with errno when it cannot be reached.
  //
  // It is looked at first, without opening it: to open a pipe, a device or a leased file has effects of its own, and to
  // open a segment that this process holds under another name, and close it again, would drop its locks.
  static int open_known(const std::string& where) {
#if defined(__linux__)
    struct Look {
      int fd;
      ~Look() {
        if (fd >= 0) ::close(fd);  // of O_PATH: drops no locks
      }
    } const look{::open(where.c_str(), O_PATH | O_CLOEXEC)};
    if (look.fd < 0) return -1;
    const std::string reopened = "/proc/self/fd/" + std::to_string(look.fd);
    char target[4096];
    const ssize_t n = readlink(reopened.c_str(), target, sizeof target);
    const std::string name(target, size_t(std::max<ssize_t>(n, 0)));
    if (name.rfind("/memfd:apexrl", 0) != 0 && name.find("/apexrl-") == std::string::npos) throw not_the_one(where);
    struct stat there;
    if (fstat(look.fd, &there) != 0 || !S_ISREG(there.st_mode) || is_held(there)) throw not_the_one(where);
#else
    const std::string& reopened = where;
    struct stat there;
    if (stat(where.c_str(), &there) != 0) return -1;
    if (!S_ISREG(there.st_mode) || is_held(there)) throw not_the_one(where);
#endif
    return ::open(reopened.c_str(), O_RDWR | O_CLOEXEC);
  }

  static std::vector<std::shared_ptr<Segment>> known() {
    std::vector<std::shared_ptr<Segment>> all;
    std::lock_guard guard(mutex());
    for (const auto& [uuid, one] : registry())
      if (auto segment = one.lock()) all.push_back(std::move(segment));
    return all;  // let go of without the mutex: one may be the last
  }

  static bool is_held(const struct stat& file) {
    for (const auto& segment : known()) {
      struct stat mine;
      if (fstat(segment->fd_, &mine) == 0 && mine.st_dev == file.st_dev && mine.st_ino == file.st_ino) return true;
    }
    return false;
  }

  template <typename Counts>
  static uint64_t promised(Counts&& counts) {
    uint64_t all = 0;
    for (const auto& segment : known()) {
      struct stat info;
      if (segment->needs_ == 0 || fstat(segment->fd_, &info) != 0 || !counts(*segment)) continue;
      const uint64_t taken = uint64_t(info.st_blocks) * 512;
      all += segment->needs_ > taken ? segment->needs_ - taken : 0;
    }
    return all;
  }

  void open_new(const std::string& directory) {
#if defined(__linux__)
    if (directory.empty()) {
      fd_ = memfd_create("apexrl", MFD_CLOEXEC | MFD_ALLOW_SEALING);
      strict_ = fd_ < 0 || overcommit_is_strict();
      if (fd_ >= 0) return;
      const std::string refused = std::strerror(errno);
      for (const char* place : {"/dev/shm", "/tmp"}) {
        std::string name = std::string(place) + "/apexrl-XXXXXX";
        fd_ = mkostemp(name.data(), O_CLOEXEC);
        if (fd_ < 0) continue;
        ::unlink(name.c_str());  // like a memfd it is gone with its last holder, however that ends
        return;
      }
      throw std::runtime_error("cannot create shared memory: memfd_create was refused (" + refused +
                               "), and so were files in /dev/shm and /tmp (" + std::strerror(errno) + ")");
    }
#endif
    strict_ = true;
    std::string pattern = (directory.empty() ? "/tmp" : directory) + "/apexrl-XXXXXX";
    fd_ = mkostemp(pattern.data(), O_CLOEXEC);
    if (fd_ < 0) throw std::runtime_error("cannot create shared memory in " + pattern + ": " + std::strerror(errno));
    path_ = pattern;
  }

  void map(size_t size, bool fresh, size_t at_once) {
    if (fresh && ftruncate(fd_, off_t(size)) != 0)
      throw std::runtime_error("cannot reserve " + std::to_string(size) + " bytes of shared memory: " +
                               std::strerror(errno) + (errno == EFBIG ? " (ulimit -f says how large a file may be)" : ""));
#if defined(F_ADD_SEALS)
    // A file that shrinks under its mappings kills whoever touches them. Files that are no memfd take no seals.
    if (fresh) fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
#endif
    if (fresh && strict_ && !allocate(fd_, 0, at_once)) {
      const int error = errno;
      const auto left = free();
      throw std::runtime_error("cannot have " + std::to_string(at_once) + " bytes of shared memory" +
                               (path_.empty() ? "" : " in " + path_) + (left ? ", where " + std::to_string(*left) + " are free" : "") +
                               ": " + std::strerror(error));
    }
    if (fresh) needs_ = size;
    void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (base == MAP_FAILED)
      throw std::runtime_error("cannot map " + std::to_string(size) + " bytes of shared memory: " +
                               std::strerror(errno));
    base_ = static_cast<uint8_t*>(base);
    size_ = size;
#if defined(MADV_HUGEPAGE)
    madvise(base_, size_, MADV_HUGEPAGE);
#endif
#if defined(MADV_DONTDUMP)
    madvise(base_, size_, MADV_DONTDUMP);  // a dying process holds its locks until its core dump is written
#endif
  }

  struct flock range(uint32_t index, short type) const {
    struct flock lock{};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = off_t(size_) + off_t(index);
    lock.l_len = 1;
    return lock;
  }

  void forget_inherited() {
    if (locks_fork_ != fork_generation()) {
      held_.clear();
      locks_fork_ = fork_generation();
    }
  }

  int fd_ = -1;
  uint8_t* base_ = nullptr;
  size_t size_ = 0;
  size_t needs_ = 0;  // of one that was made here
  bool strict_ = false;
  std::atomic<bool> by_page_{false};
  Uuid uuid_{};
  std::string path_, name_;
  uint64_t creator_fork_;
  uint64_t locks_fork_;
  std::set<uint32_t> held_;
};

}  // namespace apexrl
