package firewall

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// An engine that is killed while it creates a network leaves the bridge behind and does not know it after its restart.
// The table therefore records the name of each bridge in a set, from before the engine is asked to create it until it
// is known to be gone. The record tells which deployment a bridge belongs to, on a machine that several deployments, or
// several engines in one network namespace, share.

// Bridge is a bridge in the engine's network namespace that was made for this deployment.
type Bridge struct {
	Name   string
	Subnet netip.Prefix // from its name
	Index  int          // of the interface; changes if the bridge is deleted and created again
}

// Exists reports whether the namespace has an interface of that name, whoever created it.
func (f *Firewall) Exists(bridge string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.enter() == nil && f.place.exists(bridge)
}

// Subnets returns the subnets of all sandbox bridges in the namespace, of any deployment, by their names. It returns
// nil if the namespace cannot be read.
func (f *Firewall) Subnets() (found []netip.Prefix) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.enter() != nil {
		return nil
	}
	links, err := f.place.links()
	if err != nil {
		return nil
	}
	for _, l := range links {
		if subnet, ok := bridgeSubnet(l.name); ok {
			found = append(found, subnet)
		}
	}
	return found
}

// Abandoned lists the bridges that were made for this deployment and belong to no known network. Bridges that another
// deployment protects and bridges with interfaces are not listed. Recorded bridges that no longer exist are removed
// from the record.
func (f *Firewall) Abandoned() ([]Bridge, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	abandoned, err := f.abandoned()
	return abandoned, explain(err)
}

// RemoveBridge removes a bridge if [Firewall.Abandoned] would still list it, and reports whether it did.
func (f *Firewall) RemoveBridge(b Bridge) (removed bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	still, err := f.abandoned()
	if err != nil || !slices.Contains(still, b) {
		return false, explain(err)
	}
	if err := f.place.removeLink(b.Index); err != nil {
		return false, explain(err)
	}
	return true, explain(f.unrecord([]string{b.Name}))
}

func (f *Firewall) abandoned() ([]Bridge, error) {
	if f.place == nil {
		return nil, nil
	}
	unknown, err := f.recorded()
	if err != nil || len(unknown) == 0 {
		return nil, err
	}
	links, err := f.place.links()
	if err != nil {
		return nil, err
	}
	others, err := f.protectedByOthers()
	if err != nil {
		return nil, err
	}
	var abandoned []Bridge
	var gone []string
	for _, name := range unknown {
		i := slices.IndexFunc(links, func(l link) bool { return l.name == name })
		if i < 0 {
			gone = append(gone, name)
			continue
		}
		subnet, ok := bridgeSubnet(name)
		if ok && links[i].abandoned(links) && !others[name] {
			abandoned = append(abandoned, Bridge{Name: name, Subnet: subnet, Index: links[i].index})
		}
	}
	return abandoned, f.unrecord(gone)
}

// recorded lists the recorded bridges that belong to no known network.
func (f *Firewall) recorded() ([]string, error) {
	conn, err := f.dial()
	if err != nil {
		return nil, err
	}
	elements, err := conn.GetSetElements(newScript(conn, f.table, false, 0).made)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	var unknown []string
	for _, e := range elements {
		if name := unix.ByteSliceToString(e.Key); f.known[name] == nil {
			unknown = append(unknown, name)
		}
	}
	return unknown, err
}

func (f *Firewall) unrecord(bridges []string) error {
	if len(bridges) == 0 {
		return nil
	}
	return f.transact(func(s *script) error {
		keys := make([]nftables.SetElement, len(bridges))
		for i, b := range bridges {
			keys[i].Key = ifname(b)
		}
		return s.conn.SetDeleteElements(s.made, keys)
	})
}

// protectedByOthers returns the bridges that have a chain in the table of another deployment.
func (f *Firewall) protectedByOthers() (map[string]bool, error) {
	conn, err := f.dial()
	if err != nil {
		return nil, err
	}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	others := map[string]bool{}
	for _, c := range chains {
		if c.Table.Name != f.table {
			others[c.Name] = true
		}
	}
	return others, err
}

// bridgeSubnet returns the subnet of a bridge; it is the inverse of [BridgeName].
func bridgeSubnet(name string) (netip.Prefix, bool) {
	text, ok := strings.CutPrefix(name, BridgePrefix)
	address, err := hex.DecodeString(text)
	if !ok || err != nil || len(address) != 4 {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte(address)), SubnetBits), true
}

// link is an interface in a network namespace.
type link struct {
	index, master int // master is the index of the bridge that the interface is attached to, 0 for none
	name, kind    string
}

// abandoned reports whether the interface is a bridge with no interfaces attached.
func (l link) abandoned(all []link) bool {
	return l.kind == "bridge" && !slices.ContainsFunc(all, func(o link) bool { return o.master == l.index })
}

// links lists the interfaces in the namespace.
func (n *namespace) links() ([]link, error) {
	conn, err := n.route()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	answers, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETLINK, Flags: netlink.Request | netlink.Dump},
		Data:   make([]byte, unix.SizeofIfInfomsg),
	})
	if err != nil {
		return nil, err
	}
	links := make([]link, 0, len(answers))
	for _, m := range answers {
		if len(m.Data) < unix.SizeofIfInfomsg {
			continue
		}
		l := link{index: int(int32(binary.NativeEndian.Uint32(m.Data[4:])))}
		attributes, err := netlink.NewAttributeDecoder(m.Data[unix.SizeofIfInfomsg:])
		if err != nil {
			return nil, err
		}
		for attributes.Next() {
			switch attributes.Type() {
			case unix.IFLA_IFNAME:
				l.name = attributes.String()
			case unix.IFLA_MASTER:
				l.master = int(attributes.Uint32())
			case unix.IFLA_LINKINFO:
				attributes.Nested(func(info *netlink.AttributeDecoder) error {
					for info.Next() {
						if info.Type() == unix.IFLA_INFO_KIND {
							l.kind = info.String()
						}
					}
					return nil
				})
			}
		}
		if err := attributes.Err(); err != nil {
			return nil, err
		}
		links = append(links, l)
	}
	return links, nil
}

// removeLink removes an interface. Absent is no error.
func (n *namespace) removeLink(index int) error {
	conn, err := n.route()
	if err != nil {
		return err
	}
	defer conn.Close()
	request := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(request[4:], uint32(index))
	_, err = conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_DELLINK, Flags: netlink.Request | netlink.Acknowledge}, Data: request,
	})
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// route opens a netlink connection for the interfaces of the namespace.
func (n *namespace) route() (*netlink.Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: n.fd()})
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(transactionLimit))
}

// exists reports whether the namespace has an interface of that name.
func (n *namespace) exists(name string) bool {
	request, err := unix.NewIfreq(name)
	return err == nil && unix.IoctlIfreq(n.probe, unix.SIOCGIFINDEX, request) == nil
}
