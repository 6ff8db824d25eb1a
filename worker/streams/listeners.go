package streams

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// listenState is the state of a listening socket in /proc/net/tcp.
const listenState = "0A"

// engineResolver is where the engine answers name queries in a container. It is no server of the sandbox.
var engineResolver = netip.MustParseAddr("127.0.0.11")

// listeners returns the addresses on which processes listen, by TCP port, in the network namespace of a process.
// process is its directory in /proc.
func listeners(process *os.Root) (map[int][]netip.Addr, error) {
	found, count := map[int][]netip.Addr{}, 0
	for _, table := range []string{"net/tcp", "net/tcp6"} {
		file, err := process.Open(table)
		if errors.Is(err, fs.ErrNotExist) && table == "net/tcp6" { // a kernel without IPv6
			continue
		}
		if err != nil {
			return nil, err
		}
		err = readListeners(file, func(at netip.AddrPort) error {
			if at.Addr() == engineResolver {
				return nil
			}
			if count++; count > protocol.MaxPortListeners {
				return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooLarge,
					"processes in the container listen on more than %d addresses", protocol.MaxPortListeners)
			}
			found[int(at.Port())] = append(found[int(at.Port())], at.Addr())
			return nil
		})
		file.Close()
		if err != nil {
			return nil, err
		}
	}
	for _, addresses := range found {
		slices.SortFunc(addresses, netip.Addr.Compare)
	}
	return found, nil
}

// readListeners reads a table of sockets. The kernel lists those that listen first, so the connections, which may be
// many, are not read.
func readListeners(table io.Reader, each func(netip.AddrPort) error) error {
	lines := bufio.NewScanner(table)
	lines.Scan() // the names of the columns
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || fields[3] != listenState {
			return nil
		}
		at, ok := socketAddress(fields[1])
		if !ok {
			continue
		}
		if err := each(at); err != nil {
			return err
		}
	}
	return lines.Err()
}

// socketAddress parses an address such as 0100007F:1F90. The kernel prints each 32 bits of the address as a number.
func socketAddress(text string) (at netip.AddrPort, ok bool) {
	address, port, _ := strings.Cut(text, ":")
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return at, false
	}
	words, err := hex.DecodeString(address)
	if err != nil || len(words)%4 != 0 {
		return at, false
	}
	for word := range slices.Chunk(words, 4) {
		binary.NativeEndian.PutUint32(word, binary.BigEndian.Uint32(word))
	}
	ip, ok := netip.AddrFromSlice(words)
	return netip.AddrPortFrom(ip.Unmap(), uint16(number)), ok
}
