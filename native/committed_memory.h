// Memory that the system commits before it is written, so that it can refuse without killing who writes.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

namespace apexrl {

// Whether the system counts memory as taken when it is mapped.
inline bool overcommit_is_strict() {
  const int fd = ::open("/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char mode = 0;
  const bool strict = read(fd, &mode, 1) == 1 && mode == '2';
  ::close(fd);
  return strict;
}

// Commits bytes [from, to) of a file; false, with errno: the system refused. In pieces: a file system may undo what a
// signal interrupts.
inline bool allocate([[maybe_unused]] int fd, [[maybe_unused]] size_t from, [[maybe_unused]] size_t to) {
#if defined(__linux__)
  constexpr size_t kPiece = size_t(64) << 20;
  while (from < to) {
    const size_t end = std::min(to, from + kPiece);
    if (fallocate(fd, 0, off_t(from), off_t(end - from)) == 0) {
      from = end;
    } else if (errno != EINTR) {
      return errno == EOPNOTSUPP || errno == ENOSYS;  // it cannot say
    }
  }
#endif
  return true;
}

}  // namespace apexrl
