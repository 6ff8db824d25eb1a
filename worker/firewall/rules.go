package firewall

import (
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

// Names in the table. The chain of a network has its bridge's name.
const (
	chainPrerouting = "prerouting"
	chainInput      = "input"
	chainNever      = "never"
	chainInternet   = "internet"
	chainServers    = "servers"
	chainPrivate    = "private"
	chainNone       = "none"
	chainRefuse     = "refuse"
	chainCounted    = "counted"  // nothing goes through it: it shows whether the kernel can count connections
	setCounted      = "counted-" // and the bound: connections by bridge
	mapNetworks     = "networks"
	setBridges      = "bridges"
	setMade         = "made"
)

// The chains come after connections are looked up (-200) and before addresses are translated (-100):
// what a port of the host leads to does not matter, it is the host's.
var beforeTranslation = nftables.ChainPriorityRef(-150)

// script collects one transaction on the table.
type script struct {
	conn     *nftables.Conn
	table    *nftables.Table
	networks *nftables.Set // bridge: its chain
	bridges  *nftables.Set
	made     *nftables.Set // record of bridges that were asked for
	counted  *nftables.Set // connections by bridge
	refuse   expr.Any
	silent   bool           // refuse by silence: the kernel cannot answer before routing
	allowed  []netip.Prefix // private ranges that policies may allow
	most     int            // connections of a network; 0: any number
}

func newScript(conn *nftables.Conn, table string, silent bool, most int) *script {
	t := &nftables.Table{Name: table, Family: nftables.TableFamilyINet}
	s := &script{
		conn: conn, table: t,
		networks: &nftables.Set{Table: t, Name: mapNetworks, IsMap: true, KeyType: nftables.TypeIFName, DataType: nftables.TypeVerdict},
		bridges:  &nftables.Set{Table: t, Name: setBridges, KeyType: nftables.TypeIFName},
		made:     &nftables.Set{Table: t, Name: setMade, KeyType: nftables.TypeIFName, KeyByteOrder: binaryutil.NativeEndian}, // so that `nft` can print it
		counted:  &nftables.Set{Table: t, Name: setCounted + strconv.Itoa(most), KeyType: nftables.TypeIFName, KeyByteOrder: binaryutil.NativeEndian, Dynamic: true},
		refuse:   &expr.Verdict{Kind: expr.VerdictGoto, Chain: chainRefuse}, silent: silent, most: most,
	}
	return s
}

// common writes what all networks share.
func (s *script) common(resolvers, named []netip.Addr, deny []netip.Prefix) error {
	s.conn.AddTable(s.table)
	if err := s.conn.AddSet(s.networks, nil); err != nil {
		return err
	}
	if err := s.conn.AddSet(s.bridges, nil); err != nil {
		return err
	}
	if err := s.conn.AddSet(s.made, nil); err != nil {
		return err
	}
	for _, name := range []string{chainRefuse, chainNever, chainServers, chainPrivate, chainInternet, chainNone} {
		s.chain(name)
	}
	s.base(chainPrerouting, nftables.ChainHookPrerouting)
	s.base(chainInput, nftables.ChainHookInput)

	if !s.silent {
		// The kernel sends as many resets as are due, and one ICMP message a second.
		s.rule(chainRefuse, transport(unix.IPPROTO_TCP), &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
		s.rule(chainRefuse, nil, &expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED})
	}
	s.rule(chainRefuse, nil, verdict(expr.VerdictDrop))
	for _, r := range slices.Concat(never, deny) {
		s.rule(chainNever, to(r), s.refuse)
	}
	// The bridges of other sandboxes, of whichever deployment.
	s.rule(chainNever, []expr.Any{
		&expr.Fib{Register: 1, ResultOIFNAME: true, FlagDADDR: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(BridgePrefix)},
	}, s.refuse)

	for _, a := range named { // by the operator: also where they are in a range that is never reached
		s.resolver(chainServers, a)
	}
	s.rule(chainInternet, nil, jump(chainServers))
	s.rule(chainInternet, nil, jump(chainNever))
	for _, a := range resolvers {
		s.resolver(chainInternet, a)
	}
	for _, r := range private {
		s.rule(chainPrivate, to(r), s.refuse)
	}
	s.rule(chainInternet, nil, jump(chainPrivate))
	s.rule(chainInternet, nil, verdict(expr.VerdictAccept))
	s.rule(chainNone, nil, s.refuse)
	if s.most > 0 {
		if err := s.conn.AddSet(s.counted, nil); err != nil {
			return err
		}
		s.chain(chainCounted)
		s.rule(chainCounted, s.tooMany(), s.refuse)
	}

	s.rule(chainPrerouting, incoming(), &expr.Lookup{SourceRegister: 1, SetName: s.networks.Name, SetID: s.networks.ID, IsDestRegSet: true})
	// Whatever way a packet took to the host, also a broadcast in the sandbox's own network.
	fromBridge := append(incoming(), &expr.Lookup{SourceRegister: 1, SetName: s.bridges.Name, SetID: s.bridges.ID})
	s.rule(chainInput, slices.Concat(fromBridge, answer()), verdict(expr.VerdictAccept))
	s.rule(chainInput, fromBridge, verdict(expr.VerdictDrop))
	return nil
}

// resolver lets names be asked of a server, and nothing else.
func (s *script) resolver(chain string, a netip.Addr) {
	for _, by := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		s.rule(chain, slices.Concat(to(netip.PrefixFrom(a, 32)), transport(by), []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(53)},
		}), verdict(expr.VerdictAccept))
	}
}

// network writes the chain of a network, and leads what comes from its bridge there.
func (s *script) network(n Network) error {
	s.chain(n.Bridge)
	// Sandboxes have no IPv6: what comes nevertheless was made by hand.
	s.rule(n.Bridge, []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.NFPROTO_IPV4}},
	}, verdict(expr.VerdictDrop))
	// A forged source could make a connection look like one that somebody else began.
	s.rule(n.Bridge, address(fromOffset, n.Subnet, expr.CmpOpNeq), verdict(expr.VerdictDrop))
	s.rule(n.Bridge, answer(), verdict(expr.VerdictAccept))
	s.rule(n.Bridge, []expr.Any{
		&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}, s.refuse)
	if s.most > 0 {
		s.rule(n.Bridge, s.tooMany(), s.refuse)
	}
	s.rule(n.Bridge, to(n.Subnet), verdict(expr.VerdictAccept))
	switch n.Policy.Mode {
	case protocol.NetworkInternet:
		s.rule(n.Bridge, nil, jump(chainInternet))
	case protocol.NetworkAllow:
		s.allow(n)
	}
	s.rule(n.Bridge, nil, jump(chainNone))
	key := ifname(n.Bridge)
	for _, set := range []*nftables.Set{s.made, s.bridges} {
		if err := s.conn.SetAddElements(set, []nftables.SetElement{{Key: key}}); err != nil {
			return err
		}
	}
	return s.conn.SetAddElements(s.networks, []nftables.SetElement{{Key: key, VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: n.Bridge}}})
}

// allow writes what the ranges of a policy let through: of private ones those that the operator allows, too,
// and of the others what is public.
func (s *script) allow(n Network) {
	accept := verdict(expr.VerdictAccept)
	if n.Policy.internet() {
		s.rule(n.Bridge, nil, jump(chainServers))
	}
	s.rule(n.Bridge, nil, jump(chainNever))
	var public []netip.Prefix
	for _, r := range n.Policy.Allow {
		switch {
		case !protocol.PrivateRange(r):
			public = append(public, r)
		case protocol.RangeWithin(r, s.allowed):
			s.rule(n.Bridge, to(r), accept)
		}
	}
	if n.Policy.internet() {
		s.rule(n.Bridge, nil, jump(chainInternet))
		return
	}
	s.rule(n.Bridge, nil, jump(chainPrivate))
	for _, r := range public {
		s.rule(n.Bridge, to(r), accept)
	}
}

// forget takes the rules of a network away, and keeps the record of its bridge. The transaction fails where something of it is not there.
func (s *script) forget(bridge string) error {
	key := []nftables.SetElement{{Key: ifname(bridge)}}
	if err := s.conn.SetDeleteElements(s.networks, key); err != nil {
		return err
	}
	if err := s.conn.SetDeleteElements(s.bridges, key); err != nil {
		return err
	}
	s.conn.DelChain(&nftables.Chain{Table: s.table, Name: bridge})
	return nil
}

// chain makes a chain, and empties one that is there: in one transaction with the rules that follow, so
// that no packet sees it empty.
func (s *script) chain(name string) {
	c := s.conn.AddChain(&nftables.Chain{Table: s.table, Name: name})
	s.conn.FlushChain(c)
}

func (s *script) base(name string, hook *nftables.ChainHook) {
	accept := nftables.ChainPolicyAccept
	c := s.conn.AddChain(&nftables.Chain{
		Table: s.table, Name: name, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: beforeTranslation, Policy: &accept,
	})
	s.conn.FlushChain(c)
}

func (s *script) rule(chain string, when []expr.Any, then expr.Any) {
	s.conn.AddRule(&nftables.Rule{Table: s.table, Chain: &nftables.Chain{Name: chain}, Exprs: append(slices.Clip(when), then)})
}

func verdict(kind expr.VerdictKind) expr.Any { return &expr.Verdict{Kind: kind} }
func jump(chain string) expr.Any             { return &expr.Verdict{Kind: expr.VerdictJump, Chain: chain} }

// transport matches the packets of a protocol.
func transport(protocol byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol}},
	}
}

// incoming loads the name of the interface that a packet came by.
func incoming() []expr.Any { return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}} }

// answer matches packets of connections that somebody else began. Not "established", which would also
// be a connection that began while the rules were away.
func answer() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{1}},
	}
}

// tooMany matches the first packet of a connection where so many from the same bridge are known. The kernel's table
// of connections is one for the whole host: without this, a sandbox that fills it leaves its host and all others
// without new ones. What is counted is in a set, since rules are written again and again, which would forget it;
// another bound has another set. The kernel takes out what has no connections any more.
func (s *script) tooMany() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitNEW), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Dynset{SrcRegKey: 1, SetName: s.counted.Name, SetID: s.counted.ID, Operation: unix.NFT_DYNSET_OP_ADD, Exprs: []expr.Any{
			&expr.Connlimit{Count: uint32(s.most), Flags: expr.NFT_CONNLIMIT_F_INV},
		}},
	}
}

// Where the addresses are in an IPv4 header.
const (
	fromOffset = 12
	toOffset   = 16
)

func to(r netip.Prefix) []expr.Any { return address(toOffset, r, expr.CmpOpEq) }

// address compares an address of an IPv4 packet with a range.
func address(offset uint32, r netip.Prefix, op expr.CmpOp) []expr.Any {
	network := r.Masked().Addr().As4()
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.NFPROTO_IPV4}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: net.CIDRMask(r.Bits(), 32), Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: 1, Data: network[:]},
	}
}

// ifname is an interface's name as the kernel compares it.
func ifname(name string) []byte {
	key := make([]byte, unix.IFNAMSIZ)
	copy(key, name)
	return key
}
