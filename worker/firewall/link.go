package firewall

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// link is an interface in a network namespace.
type link struct {
	index, master int // master is the index of the bridge to which the interface is attached; 0: no bridge
	name, kind    string
}

// abandoned reports whether the interface is a bridge to which no interface is attached.
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

// removeLink removes an interface. An interface that does not exist is no error.
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

// route opens a netlink connection that reads and changes the interfaces of the namespace.
func (n *namespace) route() (*netlink.Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: n.fd()})
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(transactionLimit))
}

// exists reports whether the namespace has an interface with this name.
func (n *namespace) exists(name string) bool {
	request, err := unix.NewIfreq(name)
	return err == nil && unix.IoctlIfreq(n.probe, unix.SIOCGIFINDEX, request) == nil
}
