#include "bootstrap/card.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "base/json_scanner.h"
#include "base/text.h"

namespace rdmacoll {
namespace {

constexpr std::size_t kCardBytesMax = 64 * 1024;
constexpr std::size_t kAddressesMax = 256;
constexpr std::size_t kSettingsMax = 256;
constexpr std::size_t kTransportsMax = 16;
constexpr std::size_t kUnixNameBytesMax = 100;  // sockaddr_un takes 107

// Whether a Unix socket's name has plain letters only. It is empty in a world of one.
bool is_plain_name(const std::string& name) {
  return name.size() <= kUnixNameBytesMax && std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
         });
}

TransportCard scan_transport(JsonScanner& scanner) {
  TransportCard card;
  card.obstacle = scanner.expect("{\"obstacle\":").text();
  card.is_off = scanner.expect(",\"off\":").flag();
  card.has_devices = scanner.expect(",\"devices\":").flag();
  card.request = scanner.expect(",\"request\":").text();
  card.pool_bytes = scanner.expect(",\"pool\":").number<uint64_t>();
  scanner.expect("}");
  return card;
}

std::string transport_json(const std::string& name, const TransportCard& card) {
  return cat(json_quote(name), ":{\"obstacle\":", json_quote(card.obstacle),
             ",\"off\":", int{card.is_off}, ",\"devices\":", int{card.has_devices},
             ",\"request\":", json_quote(card.request), ",\"pool\":", card.pool_bytes, "}");
}

void scan(JsonScanner& scanner, Card& card) {
  card.wire = scanner.expect("{\"wire\":").number<uint32_t>();
  card.abi = scanner.expect(",\"abi\":").number<uint32_t>();
  if (card.wire != kWireVersion) return;  // another version may mean anything by the rest
  card.host = scanner.expect(",\"host\":").text();
  card.pid = scanner.expect(",\"pid\":").number<int64_t>();
  card.node_key = scanner.expect(",\"node\":").text();
  card.cpus = scanner.expect(",\"cpus\":").text();
  card.numa_node = scanner.expect(",\"numa\":").number<int>();
  card.uid = scanner.expect(",\"uid\":").number<uint32_t>();
  card.unix_name = scanner.expect(",\"unix\":").text();
  scanner.expect(",\"tcp\":").list("[]", kAddressesMax, [&] {
    const auto address = SocketAddress::parse(scanner.text());
    if (!address || address->port() == 0) return scanner.fail();
    card.tcp.push_back(*address);
  });
  card.pool_bytes = scanner.expect(",\"buffer\":").number<uint64_t>();
  scanner.expect(",\"transports\":").list("{}", kTransportsMax, [&] {
    std::string name = scanner.text();
    scanner.expect(":");
    if (!card.transports.emplace(std::move(name), scan_transport(scanner)).second) scanner.fail();
  });
  scanner.expect(",\"settings\":").list("{}", kSettingsMax, [&] {
    std::string name = scanner.text();
    std::string value = scanner.expect(":").text();
    if (!card.settings.emplace(std::move(name), std::move(value)).second) scanner.fail();
  });
  scanner.expect("}");
  if (!scanner.at_end() || card.pid <= 0 || !is_plain_name(card.unix_name)) scanner.fail();
}

}  // namespace

std::string to_json(const Card& card) {
  std::vector<std::string> addresses, transports, settings;
  for (const SocketAddress& address : card.tcp) addresses.push_back(json_quote(address.text()));
  for (const auto& [name, one] : card.transports) transports.push_back(transport_json(name, one));
  for (const auto& [name, value] : card.settings) {
    settings.push_back(cat(json_quote(name), ":", json_quote(value)));
  }
  return cat("{\"wire\":", card.wire, ",\"abi\":", card.abi, ",\"host\":", json_quote(card.host),
             ",\"pid\":", card.pid, ",\"node\":", json_quote(card.node_key),
             ",\"cpus\":", json_quote(card.cpus), ",\"numa\":", card.numa_node,
             ",\"uid\":", card.uid, ",\"unix\":", json_quote(card.unix_name), ",\"tcp\":[",
             join(addresses, ","), "],\"buffer\":", card.pool_bytes, ",\"transports\":{",
             join(transports, ","), "},\"settings\":{", join(settings, ","), "}}");
}

Status parse_card(std::string_view text, int rank, Card& card) {
  card = Card{};
  JsonScanner scanner(text.size() <= kCardBytesMax ? text : std::string_view());
  scan(scanner, card);
  if (scanner.ok()) return {};
  return Status(Code::invalid, cat("the card of rank ", rank, " cannot be read (", text.size(),
                                   " B): ", json_quote(text.substr(0, 80)),
                                   ". Every rank must run the same rdmacoll."));
}

std::string this_node_key() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat network {};
  // The inode names the network namespace, in which abstract Unix sockets live.
  if (::stat("/proc/self/ns/net", &network) != 0) network.st_ino = 0;
  return cat(boot, ":", network.st_ino);
}

std::string_view machine_key(const Card& card) {
  return std::string_view(card.node_key).substr(0, card.node_key.find(':'));
}

std::string this_host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

}  // namespace rdmacoll
