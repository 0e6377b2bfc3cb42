// Python bindings of chunks sent to and received from other hosts.
#include "bind.h"
#include "inbox.h"

namespace apexrl {
namespace {

using HeadTuple = std::tuple<uint64_t, uint64_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint64_t>;

class PyInbox {
 public:
  PyInbox(std::shared_ptr<PyReplay> replay, uint32_t streams, std::shared_ptr<Segment> receipts)
      : replay_(std::move(replay)), inbox_(replay_->replay->segment(), streams, std::move(receipts)) {}

  WriteStatus lease() { return inbox_.leased() ? WriteStatus::ok : inbox_.lease(); }
  void release() { inbox_.release(); }
  bool leased() const { return inbox_.leased(); }
  void close(uint32_t stream) {
    if (stream >= inbox_.streams()) throw nb::index_error("no such stream");
    if (inbox_.leased()) inbox_.close(stream);
  }
  // -> (status, why it was refused)
  std::tuple<CommitStatus, const char*> commit(uint32_t stream, const HeadTuple& head, nb::handle body, size_t offset,
                                      uint32_t account, uint64_t sequence, uint64_t item) {
    Buffer buffer;
    const auto& [source, slot_generation, first, positions, rows, cells, items, bytes] = head;
    if (!buffer.get(body.ptr(), PyBUF_C_CONTIGUOUS)) throw std::invalid_argument("a body is contiguous bytes");
    const size_t size = size_t(buffer.view().len);
    if (stream >= inbox_.streams() || account >= inbox_.accounts()) throw nb::index_error("no such stream or account");
    if (offset > size || bytes > size - offset) return {CommitStatus::refused, "its body is cut off"};
    if (!inbox_.leased()) return {CommitStatus::closed, nullptr};
    const char* why = nullptr;
    const ChunkHead chunk{source, slot_generation, first, positions, rows, cells, items, bytes};
    nb::gil_scoped_release release;
    auto answer = inbox_.commit(stream, chunk, buffer.data<uint8_t>() + offset, bytes, account, sequence, item, why);
    const auto owner = answer == CommitStatus::wait ? replay_->replay->owner() : nullptr;
    if (owner != nullptr) {  // an owner in this process serves its own workers at once
      owner->serve();
      answer = inbox_.commit(stream, chunk, buffer.data<uint8_t>() + offset, bytes, account, sequence, item, why);
    }
    return {answer, why};
  }
  bool all_settled() {
    replay_->serve_here();
    return inbox_.all_settled();
  }
  void wait(double seconds) {
    if (!inbox_.leased()) return;
    nb::gil_scoped_release release;
    inbox_.wait(nanoseconds(seconds));
  }

 private:
  std::shared_ptr<PyReplay> replay_;
  Inbox inbox_;
};

}  // namespace

void bind_chunks(nb::module_& m) {
  nb::enum_<CommitStatus>(m, "CommitStatus")
      .value("done", CommitStatus::done)
      .value("wait", CommitStatus::wait)
      .value("closed", CommitStatus::closed)
      .value("repeated", CommitStatus::repeated)
      .value("refused", CommitStatus::refused);
  // -> (status, heads, concatenated bodies)
  m.def("take_chunks", [](PyReplay& r, double linger, uint64_t most, uint64_t allowed) {
    static thread_local std::vector<ChunkHead> chunks;
    static thread_local std::vector<uint8_t> out;
    const auto owner = r.replay->owner();
    SampleStatus status = SampleStatus::yielded;
    if (owner != nullptr) {
      nb::gil_scoped_release release;
      status = owner->take_chunks(nanoseconds(linger), most, allowed, chunks, out);
    }
    nb::list heads;
    if (status == SampleStatus::ok)
      for (const ChunkHead& c : chunks)
        heads.append(nb::make_tuple(c.source, c.slot_generation, c.first, c.positions, c.rows, c.cells, c.items, c.bytes));
    const bool some = status == SampleStatus::ok;
    return nb::make_tuple(status, heads, nb::bytes(reinterpret_cast<const char*>(out.data()), some ? out.size() : 0));
  }, nb::arg("replay"), nb::arg("linger"), nb::arg("most"), nb::arg("allowed"));
  m.def("receipts_bytes", &Receipts::bytes, nb::arg("accounts"));

  nb::class_<PyInbox>(m, "Inbox")
      .def(nb::init<std::shared_ptr<PyReplay>, uint32_t, std::shared_ptr<Segment>>(), nb::arg("replay"), nb::arg("streams"),
           nb::arg("receipts"))
      .def("lease", &PyInbox::lease)
      .def("release", &PyInbox::release)
      .def_prop_ro("leased", &PyInbox::leased)
      .def("close", &PyInbox::close, nb::arg("stream"))
      .def("commit", &PyInbox::commit, nb::arg("stream"), nb::arg("head"), nb::arg("body"), nb::arg("offset"),
           nb::arg("account"), nb::arg("sequence"), nb::arg("item"))
      .def("all_settled", &PyInbox::all_settled)
      .def("wait", &PyInbox::wait, nb::arg("seconds"));
}

}  // namespace apexrl
