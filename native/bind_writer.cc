// Python bindings of a replay's writer, which one thread uses at a time.
#include <cmath>
#include <optional>

#include "bind.h"

namespace apexrl {
namespace {

class PyWriter {
 public:
  PyWriter(std::shared_ptr<PyReplay> replay, uint32_t streams)
      : replay_(std::move(replay)), streams_(streams) {}

  WriteStatus lease() {
    if (writer_ && writer_->leased()) return WriteStatus::ok;
    if (writer_) {  // inherited by fork: it belongs to the parent
      static_cast<void>(writer_.release());
      busy_.clear();
    }
    writer_ = std::make_unique<Writer>(replay_->replay->segment(), streams_);
    const WriteStatus status = writer_->lease();
    if (status != WriteStatus::ok) writer_.reset();
    return status;
  }
  void release() {
    if (writer_ && !writer_->leased()) static_cast<void>(writer_.release());
    writer_.reset();
  }
  ~PyWriter() { release(); }
  bool leased() const { return writer_ && writer_->leased(); }

  // -> (next row, status, row of a bad priority)
  std::tuple<size_t, nb::handle, size_t> extend(const nb::dict& values, nb::handle priorities, size_t start) {
    Busy busy(busy_);
    if (!busy) return {start, member(WriteStatus::busy), 0};
    if (!leased()) return {start, member(WriteStatus::closed), 0};
    std::vector<Buffer> buffers(replay_->fields.size());
    size_t n = 0, bad = 0;
    bool first = true;
    if (!replay_->columns(values, 0, buffers, data_, n, first) || start > n) return {start, member(WriteStatus::irregular), 0};
    const Geometry& g = replay_->replay->view().geometry();
    const double* powered = nullptr;
    if (!priorities.is_none()) {
      const WriteStatus status = power_priorities(priorities.ptr(), n, g, powered_, bad);
      if (status != WriteStatus::ok) return {start, member(status), bad};
      powered = powered_.data();
    }
    std::optional<nb::gil_scoped_release> release;
    const bool compresses = compressed();
    if (uint64_t(g.record) * (n - start) > (1 << 18) || g.slot_bytes > (1 << 18) || compresses) release.emplace();
    const auto extend = [&] { return compresses ? extend_compressed(powered, n, start) : writer_->extend(data_.data(), powered, n, start); };
    WriteStatus status = extend();
    const auto owner = status == WriteStatus::wait ? replay_->replay->owner() : nullptr;
    for (size_t before = n + 1; owner != nullptr && status == WriteStatus::wait && before != start;) {
      before = start;
      owner->serve();
      status = extend();
    }
    return {start, member(status), 0};
  }

  // -> (stored, status, pending items, bad row). `which`: int64 array of stream numbers, or None for all.
  std::tuple<bool, nb::handle, size_t, size_t> append(const nb::dict& values, nb::handle reward, nb::handle terminated,
                                               nb::handle truncated, nb::handle which) {
    Busy busy(busy_);
    if (!busy) return {false, member(WriteStatus::busy), 0, 0};
    if (!leased()) return {false, member(WriteStatus::closed), 0, 0};
    std::vector<Buffer> buffers(replay_->fields.size());
    Buffer r, te, tr, w;
    size_t n = 0;
    bool first = true;
    if (!r.get(reward.ptr()) || !te.get(terminated.ptr()) || !tr.get(truncated.ptr()) ||
        !(r.vector('f', 4) || r.vector('f', 8)) || !te.vector('b', 1) || !tr.vector('b', 1))
      return {false, member(WriteStatus::irregular), 0, 0};
    n = r.size();
    reward_.resize(n);
    if (r.is('f', 4)) {
      std::copy_n(r.data<float>(), n, reward_.data());
    } else {  // as Gymnasium's vector environments give it
      std::copy_n(r.data<double>(), n, reward_.data());
    }
    first = false;
    if (te.size() != n || tr.size() != n || !replay_->columns(values, 3, buffers, data_, n, first))
      return {false, member(WriteStatus::irregular), 0, 0};
    const int64_t* streams = nullptr;
    if (!which.is_none()) {
      if (!w.get(which.ptr()) || !w.vector('i', 8) || w.size() != n) return {false, member(WriteStatus::irregular), 0, 0};
      streams = w.data<int64_t>();
      named_.resize(streams_);
      ++call_;
      for (size_t i = 0; i < n; ++i) {
        if (streams[i] < 0 || streams[i] >= int64_t(streams_) || named_[size_t(streams[i])] == call_)
          return {false, member(WriteStatus::irregular), 0, 0};
        named_[size_t(streams[i])] = call_;
      }
    } else if (n != streams_) {
      return {false, member(WriteStatus::irregular), 0, 0};
    }
    for (size_t i = 0; i < n; ++i)
      if (!std::isfinite(reward_[i])) return {false, member(WriteStatus::bad_reward), 0, i};
    if (compressed()) {
      nb::gil_scoped_release release;
      compress_rows(n);
    }
    bool stored = false;
    auto append = [&] {
      return writer_->append(data_.data(), reward_.data(), te.data<uint8_t>(), tr.data<uint8_t>(), streams, n, stored);
    };
    WriteStatus status = append();
    // When slots are short, an owner in this process gives out one at a time; every stream may need one.
    for (uint32_t tries = 0; tries <= streams_ && !stored && status == WriteStatus::wait && replay_->serve_here(); ++tries)
      status = append();
    return {stored, member(status), writer_->pending_count(), 0};
  }

  size_t pending() { return leased() ? writer_->pending(pending_) : 0; }
  // A column of the pending items into `out` [pending, (stack,) ...].
  void gather_pending(size_t column, bool later, nb::handle out) {
    Buffer buffer;
    const View& view = replay_->replay->view();
    const Column& c = view.header().column[column];
    const size_t frames = frames_of(view.geometry(), c);
    if (!buffer.get(out.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) ||
        size_t(buffer.view().len) != pending_.size() * frames * c.bytes)
      throw std::invalid_argument("out has another size than the pending items");
    gather_any(view, c, pending_.data(), pending_.size(), later, buffer.data<uint8_t>());
  }
  // Arrays of [pending] (transition), or [pending, T] with `mask` and `first` [pending, T + 1].
  void gather_pending_steps(nb::handle reward, nb::handle discount, nb::handle mask, nb::handle first) {
    const View& view = replay_->replay->view();
    const Geometry& g = view.geometry();
    const size_t n = pending_.size();
    const bool windows = g.kind == Kind::sequence || g.kind == Kind::unroll;
    const size_t steps = windows ? g.burn_in + g.n_step : 1;
    auto* r = reinterpret_cast<float*>(writable(reward, n * steps * 4));
    auto* d = reinterpret_cast<float*>(writable(discount, n * steps * 4));
    if (windows) {
      gather_steps(view, pending_.data(), n, r, d, writable(mask, n * steps), writable(first, n * (steps + 1)));
    } else {
      gather_returns(view, pending_.data(), n, view.geometry().gamma, r, d);
    }
  }
  // -> (status, bad row)
  std::tuple<WriteStatus, size_t> publish(nb::handle priorities) {
    Busy busy(busy_);
    if (!busy) return {WriteStatus::busy, 0};
    if (!leased()) return {WriteStatus::closed, 0};
    if (priorities.is_none()) {
      writer_->publish(nullptr);
      return {WriteStatus::ok, 0};
    }
    size_t bad = 0;
    const WriteStatus status = power_priorities(priorities.ptr(), writer_->pending_count(),
                                                 replay_->replay->view().geometry(), powered_, bad);
    if (status == WriteStatus::ok) writer_->publish(powered_.data());
    return {status, bad};
  }

  size_t pending_count() const { return leased() ? writer_->pending_count() : 0; }
  bool all_settled() {
    if (!leased()) return true;
    replay_->serve_here();
    return writer_->all_settled();
  }
  void wait(double seconds) {
    if (!leased()) return;
    nb::gil_scoped_release release;
    writer_->wait(nanoseconds(seconds));
  }

 private:
  bool compressed() const { return replay_->replay->view().geometry().columns > replay_->fields.size(); }

  // Replaces the values of compressed columns in `data_`, n rows, by their compressed form, and adds its lengths.
  void compress_rows(size_t n) {
    const Header& h = replay_->replay->view().header();
    data_.resize(h.geometry.columns);
    packed_.resize(h.geometry.columns);
    packed_lengths_.resize(h.geometry.columns);
    for (uint32_t c = 0; c < h.geometry.columns; ++c) {
      const Column& column = h.column[c];
      if (!column.compressed) continue;
      auto& packed = packed_[c];
      auto& lengths = packed_lengths_[c];
      packed.resize(n * column.bytes);
      lengths.resize(n);
      for (size_t i = 0; i < n; ++i)
        lengths[i] = int32_t(compress(data_[c] + i * column.bytes, column.bytes, packed.data() + i * column.bytes));
      data_[c] = packed.data();
      data_[column.ragged - 1] = reinterpret_cast<const uint8_t*>(lengths.data());
    }
  }

  // As Writer::extend, some rows at a time, so that their compressed form takes little memory.
  WriteStatus extend_compressed(const double* powered, size_t n, size_t& start) {
    const Header& h = replay_->replay->view().header();
    const std::vector<const uint8_t*> all(data_.begin(), data_.begin() + std::ptrdiff_t(replay_->fields.size()));
    WriteStatus status = WriteStatus::ok;
    while (status == WriteStatus::ok && start < n) {
      const size_t rows = std::min<size_t>(n - start, 64);
      for (size_t c = 0; c < all.size(); ++c) data_[c] = all[c] + start * h.column[c].bytes;
      compress_rows(rows);
      size_t done = 0;
      status = writer_->extend(data_.data(), powered != nullptr ? powered + start : nullptr, rows, done);
      start += done;
    }
    std::copy(all.begin(), all.end(), data_.begin());
    return status;
  }

  // Guards against use by two threads.
  class Busy {
   public:
    explicit Busy(std::atomic_flag& flag) : flag_(flag), mine_(!flag.test_and_set(std::memory_order_acquire)) {}
    ~Busy() {
      if (mine_) flag_.clear(std::memory_order_release);
    }
    explicit operator bool() const { return mine_; }

   private:
    std::atomic_flag& flag_;
    bool mine_;
  };

  std::shared_ptr<PyReplay> replay_;
  uint32_t streams_;
  std::unique_ptr<Writer> writer_;
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  std::vector<const uint8_t*> data_;
  std::vector<std::vector<uint8_t>> packed_;  // per column: compressed values
  std::vector<std::vector<int32_t>> packed_lengths_;
  std::vector<double> powered_;
  std::vector<float> reward_;
  std::vector<ItemRef> pending_;
  std::vector<uint64_t> named_;  // per stream: the last call that named it
  uint64_t call_ = 0;
};

}  // namespace

void bind_writer(nb::module_& m) {
  nb::class_<PyWriter>(m, "Writer")
      .def(nb::init<std::shared_ptr<PyReplay>, uint32_t>())
      .def("lease", &PyWriter::lease)
      .def("release", &PyWriter::release)
      .def_prop_ro("leased", &PyWriter::leased)
      .def("extend", &PyWriter::extend, nb::arg("values"), nb::arg("priorities").none(), nb::arg("start"))
      .def("append", &PyWriter::append, nb::arg("values"), nb::arg("reward"), nb::arg("terminated"),
           nb::arg("truncated"), nb::arg("which").none())
      .def("pending", &PyWriter::pending)
      .def_prop_ro("pending_count", &PyWriter::pending_count)
      .def("gather_pending", &PyWriter::gather_pending)
      .def("gather_pending_steps", &PyWriter::gather_pending_steps, nb::arg("reward"), nb::arg("discount"),
           nb::arg("mask") = nb::none(), nb::arg("first") = nb::none())
      .def("publish", &PyWriter::publish, nb::arg("priorities").none())
      .def("all_settled", &PyWriter::all_settled)
      .def("wait", &PyWriter::wait);
}

}  // namespace apexrl
