package spec

import (
	"fmt"
	"net/netip"
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/boxfleet/boxfleet/protocol"
)

// shortForm decodes the forms that exist only in YAML. done is false if the node has the wire form.
func (d *decoder) shortForm(node *yaml.Node, into any, path string) (done bool, err error) {
	scalar, list := node.Kind == yaml.ScalarNode, node.Kind == yaml.SequenceNode
	switch v := into.(type) {
	case *map[string]string:
		return true, d.pairs(node, v, path)
	case *map[string]protocol.Sealed:
		return true, d.sensitiveEnv(node, v, path)
	case *protocol.SecretUse:
		if scalar {
			return true, short(d, node, path, v, readSecret)
		}
	case *[]protocol.Copy:
		return true, d.copies(node, v, path)
	case *protocol.Network:
		if scalar {
			return true, short(d, node, path, v, readNetwork)
		}
		defer func() {
			if v.Allow != nil && v.Mode == "" { // also for an empty list, which Validate then rejects
				v.Mode = protocol.NetworkAllow
			}
		}()
		return true, d.structure(node, reflect.ValueOf(v).Elem(), path)
	case *protocol.Port:
		if scalar {
			return true, short(d, node, path, v, readPort)
		}
	case *protocol.Mount:
		if scalar {
			return true, short(d, node, path, v, readMount)
		}
	case *protocol.Tmpfs:
		if scalar {
			return true, short(d, node, path, v, readTmpfs)
		}
	case *protocol.Hook:
		if list {
			return true, d.value(node, reflect.ValueOf(&v.Command).Elem(), join(path, "command"))
		}
		if scalar {
			return true, d.wrong(node, path, `must be a list or a map; for a line of shell write ["sh", "-c", "..."]`)
		}
	case *[]string:
		if scalar && strings.HasSuffix(path, "healthcheck.test") {
			line, err := d.text(node, path)
			*v = []string{"CMD-SHELL", line}
			if line == "NONE" { // disables the test; not a command
				*v = []string{line}
			}
			return true, err
		}
	}
	return false, nil
}

// short decodes a value that is written as a single text.
func short[T any](d *decoder, node *yaml.Node, path string, into *T, read func(string) (T, error)) error {
	text, err := d.text(node, path)
	if err != nil {
		return err
	}
	if *into, err = read(integral(node, text)); err != nil {
		return d.wrong(node, path, "%v", err)
	}
	return nil
}

func readNetwork(text string) (n protocol.Network, err error) {
	switch text {
	case protocol.NetworkInternet, protocol.NetworkNone:
		return protocol.Network{Mode: text}, nil
	}
	return n, fmt.Errorf("must be internet, none, or a map with allow: [RANGE, ...], got %.40q", text)
}

// readPort parses [HOST:]CONTAINER[/PROTOCOL]. The host address, if any, must be 127.0.0.1.
func readPort(text string) (p protocol.Port, err error) {
	errForm := fmt.Errorf("must be [HOST:]CONTAINER[/PROTOCOL] such as \"8080:80/udp\" or \"80\", got %.40q", text)
	ports, proto, named := strings.Cut(text, "/")
	if named && proto == "" {
		return p, errForm
	}
	p.Protocol = proto
	host, container, two := strings.Cut(ports, ":")
	if !two {
		host, container = "0", host
	}
	if address, rest, three := strings.Cut(container, ":"); three {
		if ip, err := netip.ParseAddr(host); err != nil || ip != netip.AddrFrom4([4]byte{127, 0, 0, 1}) {
			return p, fmt.Errorf("ports are published on 127.0.0.1 only: write HOST:CONTAINER, got %.40q", text)
		}
		host, container = address, rest
	}
	if p.Host, err = strconv.Atoi(host); err == nil {
		p.Container, err = strconv.Atoi(container)
	}
	if err != nil {
		return protocol.Port{}, errForm
	}
	return p, nil
}

// readMount parses SOURCE:TARGET[:ro|rw].
func readMount(text string) (m protocol.Mount, err error) {
	parts := strings.Split(text, ":")
	if len(parts) == 3 && (parts[2] == "ro" || parts[2] == "rw") {
		m.Writable = parts[2] == "rw"
		parts = parts[:2]
	}
	if len(parts) != 2 || parts[0] == "" || parts[1] == "" {
		return m, fmt.Errorf("must be SOURCE:TARGET, optionally followed by :ro or :rw, got %.200q", text)
	}
	m.Source, m.Target = parts[0], parts[1]
	return m, nil
}

// ReadCopy parses SOURCE:[SERVICE:]TARGET. Targets are absolute, so text without a leading slash is the name of
// a service. An error describes the expected form.
func ReadCopy(text string) (source string, to protocol.Copy, err error) {
	source, target, ok := strings.Cut(text, ":")
	if service, rest, named := strings.Cut(target, ":"); named && !strings.HasPrefix(target, "/") {
		if ok = service != ""; ok {
			to.Service, target = service, rest
		}
	}
	if !ok || source == "" || target == "" {
		return "", protocol.Copy{}, fmt.Errorf("must be SOURCE:TARGET or SOURCE:SERVICE:TARGET, got %.200q", text)
	}
	to.Target = target
	return source, to, nil
}

// readTmpfs parses TARGET[:SIZE].
func readTmpfs(text string) (t protocol.Tmpfs, err error) {
	target, size, sized := strings.Cut(text, ":")
	t.Target = target
	if sized {
		if t.Size, err = protocol.ParseBytes(size); err != nil {
			return t, fmt.Errorf("must be TARGET or TARGET:SIZE: %w", err)
		}
	}
	return t, nil
}

// pairs decodes a map of texts, or a list of K=V. It takes any scalar as it is written.
func (d *decoder) pairs(node *yaml.Node, into *map[string]string, path string) error {
	*into = map[string]string{}
	d.document.open[path] = true
	switch node.Kind {
	case yaml.MappingNode:
		return d.entries(node, path, func(key, value *yaml.Node) error {
			if of, found := strings.CutSuffix("."+path, ".env"); found && value.Kind == yaml.MappingNode {
				return d.sensitive(key, value, strings.TrimPrefix(of, "."))
			}
			text, err := d.pair(value, join(path, key.Value))
			(*into)[key.Value] = text
			return err
		})
	case yaml.SequenceNode:
		for i, item := range node.Content {
			if err := d.faults.add(d.keyValue(item, *into, path, fmt.Sprintf("%s[%d]", path, i))); err != nil {
				return err
			}
		}
		return nil
	}
	return d.wrong(node, path, "must be a map, or a list of K=V, got %s", describe(node))
}

// keyValue decodes one K=V entry of a list at path into a map.
func (d *decoder) keyValue(item *yaml.Node, into map[string]string, path, at string) error {
	text, err := d.pair(item, at)
	if err != nil {
		return err
	}
	key, value, ok := strings.Cut(text, "=")
	if !ok {
		return d.wrong(item, at, "must be K=V, got %.80q", text)
	}
	if _, twice := into[key]; twice {
		return d.wrong(item, join(path, key), "appears twice")
	}
	into[key] = value
	d.mark(item, join(path, key))
	return nil
}

func (d *decoder) pair(node *yaml.Node, path string) (string, error) {
	node, err := d.enter(node, path)
	if err != nil {
		return "", err
	}
	if node.ShortTag() == "!!null" {
		return "", d.wrong(node, path, "has no value; write \"\" for empty text")
	}
	return d.scalar(node, path, "text")
}

// copies decodes a list of copies. A copy has either a digest, if it is uploaded already, or a source on the
// caller's machine.
func (d *decoder) copies(node *yaml.Node, into *[]protocol.Copy, path string) error {
	if node.Kind != yaml.SequenceNode {
		return d.wrong(node, path, "must be a list, got %s", describe(node))
	}
	for i, item := range node.Content {
		entry, err := d.copyOf(item, fmt.Sprintf("%s[%d]", path, i))
		if err := d.faults.add(err); err != nil {
			return err
		}
		if entry.Source != "" {
			d.document.Copies = append(d.document.Copies, LocalCopy{i, entry.Source, entry.Exclude})
		}
		*into = append(*into, entry.Copy)
	}
	return nil
}

// copyEntry is an entry of copies.
type copyEntry struct {
	Source  string   `json:"source"`
	Exclude []string `json:"exclude"`
	protocol.Copy
}

func (d *decoder) copyOf(item *yaml.Node, at string) (entry copyEntry, err error) {
	if item, err = d.enter(item, at); err != nil {
		return entry, err
	}
	known := len(d.faults.found)
	if item.Kind == yaml.ScalarNode {
		err = short(d, item, at, &entry.Copy, func(text string) (to protocol.Copy, err error) {
			entry.Source, to, err = ReadCopy(text)
			return to, err
		})
	} else {
		err = d.structure(item, reflect.ValueOf(&entry).Elem(), at)
	}
	switch {
	case err != nil || len(d.faults.found) > known:
	case (entry.Source == "") == (entry.Digest == ""):
		err = d.wrong(item, at, "must have either source, a path on this machine, or digest, of an uploaded tree")
	case entry.Source == "" && len(entry.Exclude) > 0:
		err = d.wrong(item, join(at, "exclude"), "is only valid for copies with a source")
	case entry.Source != "" && entry.Size != 0:
		err = d.wrong(item, join(at, "size"), "is only valid for copies with a digest")
	}
	return entry, err
}
