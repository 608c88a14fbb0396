// A queue pair of the library: reliable connection, states, posting.
#include <algorithm>
#include <cerrno>
#include <random>

#include "base/system_error.h"
#include "base/text.h"
#include "transport/rdma/error_texts.h"
#include "transport/rdma/libibverbs.h"

namespace rdmacoll::rdma {
namespace {

constexpr uint32_t kPacketNumberMask = 0xffffff;
constexpr uint8_t kHopsMax = 255;

ibv_wr_opcode opcode_of(SendKind kind) {
  switch (kind) {
    case SendKind::send:
      return IBV_WR_SEND;
    case SendKind::write:
      return IBV_WR_RDMA_WRITE;
    case SendKind::write_with_immediate:
      return IBV_WR_RDMA_WRITE_WITH_IMM;
    case SendKind::read:
      return IBV_WR_RDMA_READ;
  }
  return IBV_WR_SEND;
}

ibv_sge sge_from(const Sge& piece) {
  return {reinterpret_cast<uint64_t>(piece.address), piece.bytes, piece.local_key};
}

void copy(const Gid& from, ibv_gid& to) { std::copy(from.raw.begin(), from.raw.end(), to.raw); }

bool mtu_from(uint32_t bytes, ibv_mtu& mtu) {
  for (const ibv_mtu each : {IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096}) {
    if (mtu_bytes(each) != bytes) continue;
    mtu = each;
    return true;
  }
  return false;
}

class VerbsQueuePair final : public QueuePair {
 public:
  VerbsQueuePair(const QueuePairResources& resources, const ibv_port_attr& port)
      : resources_(resources) {
    local_.first_packet = std::random_device{}() & kPacketNumberMask;
    local_.lid = port.lid;
    local_.mtu = mtu_bytes(port.active_mtu);
    local_.gid = resources.context->gid(resources.port, resources.gid_index);
  }
  VerbsQueuePair(const VerbsQueuePair&) = delete;
  VerbsQueuePair& operator=(const VerbsQueuePair&) = delete;
  ~VerbsQueuePair() override {
    if (pair_ != nullptr) library().destroy_pair(pair_);
  }

  Status create(const QueuePairLimits& limits) {
    ibv_qp_init_attr attributes{};
    attributes.send_cq = resources_.completions;
    attributes.recv_cq = resources_.completions;
    attributes.qp_type = IBV_QPT_RC;
    const ibv_qp_cap wanted{.max_send_wr = limits.sends,
                            .max_recv_wr = limits.receives,
                            .max_send_sge = limits.send_pieces,
                            .max_recv_sge = 1,
                            .max_inline_data = limits.inline_bytes};
    attributes.cap = wanted;
    pair_ = library().create_pair(resources_.domain, &attributes);
    // A device does not report its inline limit, and refuses a queue pair that asks for more.
    for (uint32_t bytes = wanted.max_inline_data / 2; pair_ == nullptr && errno == EINVAL;
         bytes /= 2) {
      attributes.cap = wanted;
      attributes.cap.max_inline_data = bytes;
      pair_ = library().create_pair(resources_.domain, &attributes);
      if (bytes == 0) break;
    }
    if (pair_ == nullptr) return not_created(limits, errno);
    granted_ = {.sends = attributes.cap.max_send_wr,
                .receives = attributes.cap.max_recv_wr,
                .send_pieces = attributes.cap.max_send_sge,
                .inline_bytes = attributes.cap.max_inline_data};
    local_.queue_pair = pair_->qp_num;
    return initialize(limits.allows_reads);
  }

  End local() const override { return local_; }
  QueuePairLimits granted() const override { return granted_; }

  Status connect(const End& remote, const PathSettings& path) override {
    ibv_qp_attr attributes{};
    if (!mtu_from(path.mtu, attributes.path_mtu)) {
      return {Code::failed, cat("a path MTU of ", path.mtu, " bytes was agreed for ",
                                resources_.facts->name, "; 256, 512, 1024, 2048 and 4096 exist.")};
    }
    RC_RETURN_IF_ERROR(to_ready_to_receive(remote, path, attributes));
    return to_ready_to_send(path);
  }

  std::size_t post_receives(std::span<const ReceiveRequest> requests, Status& status) override {
    if (requests.empty()) return 0;
    receives_.resize(std::max(receives_.size(), requests.size()));
    pieces_.resize(std::max(pieces_.size(), requests.size()));
    for (std::size_t i = 0; i < requests.size(); ++i) {
      pieces_[i] = sge_from(requests[i].piece);
      receives_[i] = {.wr_id = requests[i].id,
                      .next = i + 1 < requests.size() ? &receives_[i + 1] : nullptr,
                      .sg_list = &pieces_[i],
                      .num_sge = requests[i].piece.bytes == 0 ? 0 : 1};
    }
    ibv_recv_wr* refused = nullptr;
    const int error = pair_->context->ops.post_recv(pair_, receives_.data(), &refused);
    return taken(error, refused, receives_.data(), requests.size(), "receives", status);
  }

  std::size_t post_sends(std::span<const SendRequest> requests, Status& status) override {
    if (requests.empty()) return 0;
    std::size_t pieces = 0;
    for (const SendRequest& request : requests) pieces += request.pieces.size();
    sends_.resize(std::max(sends_.size(), requests.size()));
    pieces_.resize(std::max(pieces_.size(), pieces));
    ibv_sge* next_piece = pieces_.data();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      fill(sends_[i], requests[i], next_piece);
      sends_[i].next = i + 1 < requests.size() ? &sends_[i + 1] : nullptr;
      next_piece = std::transform(requests[i].pieces.begin(), requests[i].pieces.end(), next_piece,
                                  sge_from);
    }
    ibv_send_wr* refused = nullptr;
    const int error = pair_->context->ops.post_send(pair_, sends_.data(), &refused);
    return taken(error, refused, sends_.data(), requests.size(), "sends", status);
  }

  void fail() override {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    // Only a lost device refuses this, and it flushes all requests itself.
    library().modify_pair(pair_, &attributes, IBV_QP_STATE);
  }

 private:
  const Library& library() const { return resources_.context->library(); }

  // Other fields were zeroed when `to` was made.
  static void fill(ibv_send_wr& to, const SendRequest& request, ibv_sge* pieces) {
    to.wr_id = request.id;
    to.sg_list = pieces;
    to.num_sge = static_cast<int>(request.pieces.size());
    to.opcode = opcode_of(request.kind);
    to.send_flags = 0;
    if (request.is_signalled) to.send_flags |= IBV_SEND_SIGNALED;
    if (request.is_inline) to.send_flags |= IBV_SEND_INLINE;
    to.imm_data = htobe32(request.immediate);
    to.wr.rdma.remote_addr = request.remote_address;
    to.wr.rdma.rkey = request.remote_key;
  }

  // The library reports the first request that it did not take.
  template <typename Request>
  std::size_t taken(int error, const Request* refused, const Request* first, std::size_t count,
                    std::string_view what, Status& status) const {
    if (error == 0) return count;
    if (error != ENOMEM) {
      status = {Code::failed, cat(resources_.facts->name, " refused ", what, " on queue pair ",
                                  local_.queue_pair, ": ", error_text(error), ".")};
    }
    return refused == nullptr ? 0 : static_cast<std::size_t>(refused - first);
  }

  Status not_created(const QueuePairLimits& limits, int error) const {
    return {Code::failed,
            cat(resources_.facts->name, " gives no queue pair for ", limits.sends, " sends of ",
                limits.send_pieces, " pieces and ", limits.receives,
                " receives: ", error_text(error), ". It has at most ",
                resources_.facts->queue_depth_max, " of each and ", resources_.facts->scatter_max,
                " pieces; or other programs use it up (rdma resource show), or the limit on "
                "pinned memory is too small (ulimit -l unlimited).")};
  }

  Status initialize(bool allows_reads) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.pkey_index = static_cast<uint16_t>(resources_.pkey_index);
    attributes.port_num = static_cast<uint8_t>(resources_.port);
    attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    if (allows_reads) attributes.qp_access_flags |= IBV_ACCESS_REMOTE_READ;
    const int error = library().modify_pair(
        pair_, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (error == 0) return {};
    return {Code::failed,
            cat("a queue pair of ", resources_.facts->name, " cannot use port ", resources_.port,
                " with PKEY index ", resources_.pkey_index, ": ", error_text(error),
                ". Has its configuration changed since the start?")};
  }

  Status to_ready_to_receive(const End& remote, const PathSettings& path, ibv_qp_attr& attributes) {
    attributes.qp_state = IBV_QPS_RTR;
    attributes.dest_qp_num = remote.queue_pair;
    attributes.rq_psn = remote.first_packet;
    attributes.max_dest_rd_atomic = 1;  // one read at a time; some devices refuse 0
    attributes.min_rnr_timer = path.rnr_timer;
    attributes.ah_attr.port_num = static_cast<uint8_t>(resources_.port);
    attributes.ah_attr.dlid = remote.lid;
    attributes.ah_attr.sl = path.service_level;
    attributes.ah_attr.is_global = path.needs_grh ? 1 : 0;
    if (path.needs_grh) {
      copy(remote.gid, attributes.ah_attr.grh.dgid);
      attributes.ah_attr.grh.sgid_index = static_cast<uint8_t>(path.gid_index);
      attributes.ah_attr.grh.hop_limit = kHopsMax;
      attributes.ah_attr.grh.traffic_class = path.traffic_class;
    }
    const int error =
        library().modify_pair(pair_, &attributes,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                  IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (error == 0) return {};
    return no_path(resources_.facts->name, resources_.port, local_.gid, remote.gid, remote.lid,
                   error);
  }

  Status to_ready_to_send(const PathSettings& path) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = path.timeout;
    attributes.retry_cnt = path.retries;
    attributes.rnr_retry = path.rnr_retries;
    attributes.sq_psn = local_.first_packet;
    attributes.max_rd_atomic = 1;
    const int error =
        library().modify_pair(pair_, &attributes,
                              IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    if (error == 0) return {};
    return {Code::failed, cat(resources_.facts->name, " refused timeout ", int{path.timeout}, ", ",
                              int{path.retries}, " retries and ", int{path.rnr_retries},
                              " retries for a receiver that is not ready: ", error_text(error),
                              ". Allowed are 0 to 31, 0 to 7 and 0 to 7.")};
  }

  const QueuePairResources resources_;
  ibv_qp* pair_ = nullptr;
  End local_;
  QueuePairLimits granted_;
  // Scratch for one call, kept so that posting allocates nothing after warm-up.
  std::vector<ibv_send_wr> sends_;
  std::vector<ibv_recv_wr> receives_;
  std::vector<ibv_sge> pieces_;
};

}  // namespace

Status make_queue_pair(const QueuePairResources& resources, const QueuePairLimits& limits,
                       std::unique_ptr<QueuePair>& queue_pair) {
  ibv_port_attr port;
  if (!resources.context->query_port(resources.port, port)) {
    return {Code::failed, cat(resources.facts->name, " has no port ", resources.port,
                              " any more: look at rdma link.")};
  }
  auto made = std::make_unique<VerbsQueuePair>(resources, port);
  RC_RETURN_IF_ERROR(made->create(limits));
  queue_pair = std::move(made);
  return {};
}

}  // namespace rdmacoll::rdma
