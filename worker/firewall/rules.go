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

// Names in the table. The chain of a network has the name of its bridge.
const (
	chainPrerouting = "prerouting"
	chainInput      = "input"
	chainNever      = "never"
	chainInternet   = "internet"
	chainServers    = "servers"
	chainPrivate    = "private"
	chainNone       = "none"
	chainRefuse     = "refuse"
	chainCounted    = "counted"  // no packet passes it; writing it shows whether the kernel can count connections
	setCounted      = "counted-" // first part of the name of a set; the rest is the limit
	mapNetworks     = "networks"
	setBridges      = "bridges"
	setMade         = "made"
)

// beforeTranslation is the priority of the base chains. They run after connection tracking (-200) and before address
// translation (-100). At that point, a packet to a published port still has the host's address, and counts as a packet
// to the host.
var beforeTranslation = nftables.ChainPriorityRef(-150)

// script collects one transaction on the table.
type script struct {
	conn     *nftables.Conn
	table    *nftables.Table
	networks *nftables.Set // maps a bridge to its chain
	bridges  *nftables.Set
	made     *nftables.Set // records the bridges that the engine was asked to create
	counted  *nftables.Set // counts connections by bridge
	refuse   expr.Any
	silent   bool           // drop packets without a reply, because the kernel cannot reject packets before routing
	allowed  []netip.Prefix // private ranges that policies may allow
	most     int            // maximum number of connections of a network; 0: no limit
}

func newScript(conn *nftables.Conn, table string, silent bool, most int) *script {
	t := &nftables.Table{Name: table, Family: nftables.TableFamilyINet}
	s := &script{
		conn: conn, table: t,
		networks: &nftables.Set{Table: t, Name: mapNetworks, IsMap: true, KeyType: nftables.TypeIFName,
			DataType: nftables.TypeVerdict},
		// Without KeyByteOrder, the nft program could not print the next two sets.
		bridges: &nftables.Set{Table: t, Name: setBridges, KeyType: nftables.TypeIFName},
		made:    &nftables.Set{Table: t, Name: setMade, KeyType: nftables.TypeIFName, KeyByteOrder: binaryutil.NativeEndian},
		counted: &nftables.Set{Table: t, Name: setCounted + strconv.Itoa(most), KeyType: nftables.TypeIFName,
			KeyByteOrder: binaryutil.NativeEndian, Dynamic: true},
		refuse: &expr.Verdict{Kind: expr.VerdictGoto, Chain: chainRefuse}, silent: silent, most: most,
	}
	return s
}

// common writes the rules that all networks share.
func (s *script) common(resolvers, named []netip.Addr, deny []netip.Prefix) error {
	if err := s.skeleton(); err != nil {
		return err
	}
	if !s.silent {
		// TCP gets a reset, because the kernel limits ICMP messages to one per second, but does not limit resets.
		s.rule(chainRefuse, transport(unix.IPPROTO_TCP), &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
		s.rule(chainRefuse, nil,
			&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED})
	}
	s.rule(chainRefuse, nil, verdict(expr.VerdictDrop))
	s.destinations(resolvers, named, deny)
	if s.most > 0 {
		if err := s.conn.AddSet(s.counted, nil); err != nil {
			return err
		}
		s.chain(chainCounted)
		s.rule(chainCounted, s.tooMany(), s.refuse)
	}

	s.rule(chainPrerouting, incoming(),
		&expr.Lookup{SourceRegister: 1, SetName: s.networks.Name, SetID: s.networks.ID, IsDestRegSet: true})
	// These rules apply to every packet that reaches the host, even a broadcast in the sandbox's own network.
	fromBridge := append(incoming(), &expr.Lookup{SourceRegister: 1, SetName: s.bridges.Name, SetID: s.bridges.ID})
	s.rule(chainInput, slices.Concat(fromBridge, answer()), verdict(expr.VerdictAccept))
	s.rule(chainInput, fromBridge, verdict(expr.VerdictDrop))
	return nil
}

// skeleton creates the table, its sets and its common chains. It empties common chains that already exist.
func (s *script) skeleton() error {
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
	return nil
}

// destinations writes the chains never, servers, internet, private and none.
func (s *script) destinations(resolvers, named []netip.Addr, deny []netip.Prefix) {
	for _, r := range slices.Concat(never, deny) {
		s.rule(chainNever, to(r), s.refuse)
	}
	// Refuse packets to the bridges of other sandboxes, including those of other deployments.
	s.rule(chainNever, []expr.Any{
		&expr.Fib{Register: 1, ResultOIFNAME: true, FlagDADDR: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(BridgePrefix)},
	}, s.refuse)

	// The operator configured these name servers, so they are allowed even in ranges that sandboxes never reach otherwise.
	for _, a := range named {
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
}

// resolver allows DNS queries to a name server, and nothing else.
func (s *script) resolver(chain string, a netip.Addr) {
	for _, by := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		s.rule(chain, slices.Concat(to(netip.PrefixFrom(a, 32)), transport(by), []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(53)},
		}), verdict(expr.VerdictAccept))
	}
}

// network writes the chain of a network, and sends the packets from the network's bridge to that chain.
func (s *script) network(n Network) error {
	s.chain(n.Bridge)
	// Sandboxes have no IPv6 addresses, so an IPv6 packet from a sandbox is forged.
	s.rule(n.Bridge, []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.NFPROTO_IPV4}},
	}, verdict(expr.VerdictDrop))
	// With a forged source address, a sandbox's connection could look like a connection from outside.
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
	return s.conn.SetAddElements(s.networks, []nftables.SetElement{{Key: key,
		VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: n.Bridge}}})
}

// allow writes the rules for the ranges of a policy. A private range is allowed only if the operator allows it too. In
// a range that is not private, only the public addresses are allowed.
func (s *script) allow(n Network) {
	accept := verdict(expr.VerdictAccept)
	if n.Policy.internet() {
		s.rule(n.Bridge, nil, jump(chainServers))
	}
	s.rule(n.Bridge, nil, jump(chainNever))
	var public []netip.Prefix
	for _, r := range n.Policy.Allow {
		switch {
		case !protocol.IsPrivateRange(r):
			public = append(public, r)
		case protocol.IsWithinAny(r, s.allowed):
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

// forget removes the rules of a network, and keeps the network's bridge in the record. The transaction fails if any of
// the rules is missing.
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

// chain creates an empty chain, or empties an existing chain. Its rules follow in the same transaction, so no packet
// passes the empty chain.
func (s *script) chain(name string) {
	c := s.conn.AddChain(&nftables.Chain{Table: s.table, Name: name})
	s.conn.FlushChain(c)
}

func (s *script) base(name string, hook *nftables.ChainHook) {
	accept := nftables.ChainPolicyAccept
	c := s.conn.AddChain(&nftables.Chain{
		Table: s.table, Name: name, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: beforeTranslation,
		Policy: &accept,
	})
	s.conn.FlushChain(c)
}

func (s *script) rule(chain string, when []expr.Any, then expr.Any) {
	s.conn.AddRule(&nftables.Rule{Table: s.table, Chain: &nftables.Chain{Name: chain},
		Exprs: append(slices.Clip(when), then)})
}

func verdict(kind expr.VerdictKind) expr.Any { return &expr.Verdict{Kind: kind} }
func jump(chain string) expr.Any             { return &expr.Verdict{Kind: expr.VerdictJump, Chain: chain} }

// transport matches the packets of a transport protocol.
func transport(protocol byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol}},
	}
}

// incoming loads the name of the interface by which a packet arrived.
func incoming() []expr.Any { return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}} }

// answer matches reply packets of connections from outside. Matching the connection state "established" would be wrong:
// it would also match connections that a sandbox opened while the rules were missing.
func answer() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{1}},
	}
}

// tooMany matches the first packet of a connection if the bridge has reached its limit of connections. The kernel has
// one connection table for the whole host. Without the limit, one sandbox could fill the table, and the host and the
// other sandboxes could open no new connections.
//
// The counts are kept in a set, because a count inside a rule would be lost when the rule is rewritten. Each limit has
// its own set. The kernel removes elements without connections from the set.
func (s *script) tooMany() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitNEW),
			Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Dynset{SrcRegKey: 1, SetName: s.counted.Name, SetID: s.counted.ID, Operation: unix.NFT_DYNSET_OP_ADD,
			Exprs: []expr.Any{
				&expr.Connlimit{Count: uint32(s.most), Flags: expr.NFT_CONNLIMIT_F_INV},
			}},
	}
}

// Offsets of the addresses in an IPv4 header.
const (
	fromOffset = 12
	toOffset   = 16
)

func to(r netip.Prefix) []expr.Any { return address(toOffset, r, expr.CmpOpEq) }

// address compares the source or destination address of an IPv4 packet with a range.
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

// ifname encodes an interface's name as the kernel does when it compares names.
func ifname(name string) []byte {
	key := make([]byte, unix.IFNAMSIZ)
	copy(key, name)
	return key
}
