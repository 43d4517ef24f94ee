// SPDX-License-Identifier: Apache-2.0
// Our description of libfabric's binary interface, held against its own headers where they are installed.
#include "transport/fabric/abi.h"

#include <gtest/gtest.h>

#if __has_include(<rdma/fi_rma.h>)

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

namespace mooncake::fabric::abi {
namespace {

#define MC_SAME(ours, our_member, theirs, their_member) \
    static_assert(offsetof(ours, our_member) == offsetof(theirs, their_member)); \
    static_assert(sizeof(ours::our_member) == sizeof(theirs::their_member))

// What the library makes: the members we use are where it has them.
MC_SAME(TransmitAttributes, flags, fi_tx_attr, op_flags);
MC_SAME(TransmitAttributes, size, fi_tx_attr, size);
MC_SAME(EndpointAttributes, type, fi_ep_attr, type);
MC_SAME(EndpointAttributes, protocol, fi_ep_attr, protocol);
MC_SAME(EndpointAttributes, message_bytes_max, fi_ep_attr, max_msg_size);
MC_SAME(DomainAttributes, name, fi_domain_attr, name);
MC_SAME(DomainAttributes, threading, fi_domain_attr, threading);
MC_SAME(DomainAttributes, control_progress, fi_domain_attr, control_progress);
MC_SAME(DomainAttributes, data_progress, fi_domain_attr, data_progress);
MC_SAME(DomainAttributes, resources, fi_domain_attr, resource_mgmt);
MC_SAME(DomainAttributes, mr_mode, fi_domain_attr, mr_mode);
MC_SAME(DomainAttributes, key_bytes, fi_domain_attr, mr_key_size);
MC_SAME(FabricAttributes, name, fi_fabric_attr, name);
MC_SAME(FabricAttributes, provider, fi_fabric_attr, prov_name);
MC_SAME(DeviceAttributes, name, fi_device_attr, name);
MC_SAME(LinkAttributes, speed, fi_link_attr, speed);
MC_SAME(NicRecord, device, fid_nic, device_attr);
MC_SAME(NicRecord, link, fid_nic, link_attr);
MC_SAME(Info, next, fi_info, next);
MC_SAME(Info, caps, fi_info, caps);
MC_SAME(Info, mode, fi_info, mode);
MC_SAME(Info, address_format, fi_info, addr_format);
MC_SAME(Info, source, fi_info, src_addr);
MC_SAME(Info, transmit, fi_info, tx_attr);
MC_SAME(Info, endpoint, fi_info, ep_attr);
MC_SAME(Info, domain, fi_info, domain_attr);
MC_SAME(Info, fabric, fi_info, fabric_attr);
MC_SAME(Info, nic, fi_info, nic);

// Objects and their calls.
static_assert(sizeof(Object) == sizeof(fid));
MC_SAME(Object, calls, fid, ops);
MC_SAME(ObjectCalls, close, fi_ops, close);
MC_SAME(ObjectCalls, bind, fi_ops, bind);
MC_SAME(ObjectCalls, control, fi_ops, control);
MC_SAME(Memory, descriptor, fid_mr, mem_desc);
MC_SAME(Memory, key, fid_mr, key);
MC_SAME(Addresses, calls, fid_av, ops);
MC_SAME(AddressCalls, insert, fi_ops_av, insert);
MC_SAME(AddressCalls, remove, fi_ops_av, remove);
MC_SAME(Queue, calls, fid_cq, ops);
MC_SAME(QueueCalls, read, fi_ops_cq, read);
MC_SAME(QueueCalls, read_failure, fi_ops_cq, readerr);
MC_SAME(QueueCalls, read_blocking, fi_ops_cq, sread);
MC_SAME(EndpointObject, calls, fid_ep, ops);
MC_SAME(EndpointObject, names, fid_ep, cm);
MC_SAME(EndpointObject, rma, fid_ep, rma);
MC_SAME(EndpointCalls, get_option, fi_ops_ep, getopt);
MC_SAME(EndpointCalls, set_option, fi_ops_ep, setopt);
MC_SAME(NameCalls, get_name, fi_ops_cm, getname);
MC_SAME(RmaCalls, read, fi_ops_rma, readmsg);
MC_SAME(RmaCalls, write, fi_ops_rma, writemsg);
MC_SAME(DomainObject, calls, fid_domain, ops);
MC_SAME(DomainObject, memory, fid_domain, mr);
MC_SAME(DomainCalls, open_addresses, fi_ops_domain, av_open);
MC_SAME(DomainCalls, open_queue, fi_ops_domain, cq_open);
MC_SAME(DomainCalls, open_endpoint, fi_ops_domain, endpoint);
MC_SAME(MemoryCalls, register_memory, fi_ops_mr, regattr);
MC_SAME(FabricObject, calls, fid_fabric, ops);
MC_SAME(FabricCalls, open_domain, fi_ops_fabric, domain);
MC_SAME(FabricCalls, try_wait, fi_ops_fabric, trywait);

// What we make: complete, and never smaller than theirs.
static_assert(sizeof(Completed) == sizeof(fi_cq_data_entry));
MC_SAME(Completed, context, fi_cq_data_entry, op_context);
static_assert(sizeof(Failure) >= sizeof(fi_cq_err_entry));
MC_SAME(Failure, context, fi_cq_err_entry, op_context);
MC_SAME(Failure, error, fi_cq_err_entry, err);
MC_SAME(Failure, provider_error, fi_cq_err_entry, prov_errno);
MC_SAME(Failure, details_bytes, fi_cq_err_entry, err_data_size);
static_assert(sizeof(RemoteRange) == sizeof(fi_rma_iov));
MC_SAME(RemoteRange, address, fi_rma_iov, addr);
MC_SAME(RemoteRange, length, fi_rma_iov, len);
MC_SAME(RemoteRange, key, fi_rma_iov, key);
static_assert(sizeof(RmaMessage) == sizeof(fi_msg_rma));
MC_SAME(RmaMessage, local, fi_msg_rma, msg_iov);
MC_SAME(RmaMessage, descriptors, fi_msg_rma, desc);
MC_SAME(RmaMessage, local_count, fi_msg_rma, iov_count);
MC_SAME(RmaMessage, peer, fi_msg_rma, addr);
MC_SAME(RmaMessage, remote, fi_msg_rma, rma_iov);
MC_SAME(RmaMessage, remote_count, fi_msg_rma, rma_iov_count);
MC_SAME(RmaMessage, context, fi_msg_rma, context);
static_assert(sizeof(AddressAttributes) == sizeof(fi_av_attr));
MC_SAME(AddressAttributes, kind, fi_av_attr, type);
MC_SAME(AddressAttributes, count, fi_av_attr, count);
static_assert(sizeof(QueueAttributes) == sizeof(fi_cq_attr));
MC_SAME(QueueAttributes, size, fi_cq_attr, size);
MC_SAME(QueueAttributes, format, fi_cq_attr, format);
MC_SAME(QueueAttributes, wait, fi_cq_attr, wait_obj);
static_assert(sizeof(MemoryAttributes) >= sizeof(fi_mr_attr));
MC_SAME(MemoryAttributes, ranges, fi_mr_attr, mr_iov);
MC_SAME(MemoryAttributes, range_count, fi_mr_attr, iov_count);
MC_SAME(MemoryAttributes, access, fi_mr_attr, access);
MC_SAME(MemoryAttributes, requested_key, fi_mr_attr, requested_key);
MC_SAME(MemoryAttributes, interface, fi_mr_attr, iface);
MC_SAME(MemoryAttributes, device, fi_mr_attr, device);
static_assert(kContext2Bytes >= sizeof(fi_context2));

#undef MC_SAME

// Numbers.
static_assert(version(1, 18) == FI_VERSION(1, 18));
static_assert(kMsg == FI_MSG && kRma == FI_RMA && kRead == FI_READ && kWrite == FI_WRITE);
static_assert(kReceive == FI_RECV && kTransmit == FI_TRANSMIT && kRemoteRead == FI_REMOTE_READ && kRemoteWrite == FI_REMOTE_WRITE);
static_assert(kCompletion == FI_COMPLETION && kDeliveryComplete == FI_DELIVERY_COMPLETE && kDeviceMemory == FI_HMEM);
static_assert(kSource == FI_SOURCE && kContext == FI_CONTEXT && kContext2 == FI_CONTEXT2);
static_assert(kMrBasic == FI_MR_BASIC && kMrLocal == FI_MR_LOCAL && kMrRaw == FI_MR_RAW && kMrVirtualAddresses == FI_MR_VIRT_ADDR);
static_assert(kMrAllocated == FI_MR_ALLOCATED && kMrProviderKeys == FI_MR_PROV_KEY && kMrEndpoint == FI_MR_ENDPOINT);
static_assert(kMrDeviceMemory == FI_MR_HMEM && kReliableDatagrams == FI_EP_RDM && kThreadSafe == FI_THREAD_SAFE);
static_assert(kProgressAuto == FI_PROGRESS_AUTO && kProgressManual == FI_PROGRESS_MANUAL && kResourcesManaged == FI_RM_ENABLED);
static_assert(kAddressTable == FI_AV_TABLE && kQueueOfData == FI_CQ_FORMAT_DATA);
static_assert(kWaitNone == FI_WAIT_NONE && kWaitDescriptor == FI_WAIT_FD);
static_assert(kMemoryOfSystem == FI_HMEM_SYSTEM && kMemoryOfCuda == FI_HMEM_CUDA);
static_assert(kFormatIpv6 == FI_SOCKADDR_IN6 && kFormatText == FI_ADDR_STR && kNoAddress == FI_ADDR_UNSPEC);
static_assert(kGetWait == FI_GETWAIT && kEnable == FI_ENABLE && kEndpointOption == FI_OPT_ENDPOINT);
static_assert(kErrorAvailable == FI_EAVAIL && kNoSuchKey == FI_ENOKEY);

TEST(FabricAbi, IsAsLibfabricsHeadersSay) { SUCCEED() << "compiled"; }

}  // namespace
}  // namespace mooncake::fabric::abi

#else

TEST(FabricAbi, IsAsLibfabricsHeadersSay) { GTEST_SKIP() << "libfabric's headers are not installed"; }

#endif
