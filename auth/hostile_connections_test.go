package auth_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/boxfleet/boxfleet/auth"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/rights"
)

// listeners returns a part of a configuration that opens ports for leaf nodes and websockets, and their addresses.
func listeners(t *testing.T) (part, leaf, websocket string) {
	t.Helper()
	ports, err := embedded.FreePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	leaf, websocket = fmt.Sprint("127.0.0.1:", ports[0]), fmt.Sprint("127.0.0.1:", ports[1])
	return fmt.Sprintf("leafnodes { listen: %q }\nwebsocket { listen: %q, no_tls: true }\n", leaf, websocket), leaf,
		websocket
}

// joinAsLeaf connects as a leaf node, as NATS servers do, and returns the server's first message after the login. The
// parameter prove gets the server's challenge and adds the proof of the identity to the login.
func joinAsLeaf(t *testing.T, address string, prove func(login map[string]any, nonce string)) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	from := bufio.NewReader(conn)
	line, err := from.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var info struct{ Nonce string }
	if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "INFO ")), &info); err != nil {
		t.Fatal(err)
	}
	login := map[string]any{"version": "2.15.2", "id": "NLEAF", "name": "leaf", "headers": true, "proto": 1}
	prove(login, info.Nonce)
	text, err := json.Marshal(login)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "CONNECT %s\r\nPING\r\n", text); err != nil {
		t.Fatal(err)
	}
	for {
		line, err := from.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(line, "INFO") {
			return strings.TrimSpace(line)
		}
	}
}

// TestNoCredentialsOpenALeafNode connects as a leaf node with the credentials of each role. A leaf node could let any
// client into its account.
func TestNoCredentialsOpenALeafNode(t *testing.T) {
	t.Parallel()
	a, err := auth.Init(filepath.Join(t.TempDir(), "authority"), false)
	if err != nil {
		t.Fatal(err)
	}
	part, leaf, websocket := listeners(t)
	s := startServer(t, trust(t, a).MemoryConfig()+part)
	for _, role := range rights.Roles() {
		c := issue(t, a, someone(role, string(role), "blue", "HOSTA"))
		token, err := jwt.ParseDecoratedJWT(c.Text)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := jwt.ParseDecoratedUserNKey(c.Text)
		if err != nil {
			t.Fatal(err)
		}
		said := joinAsLeaf(t, leaf, func(login map[string]any, nonce string) {
			login["jwt"], login["sig"] = token, sign(t, pair, nonce)
		})
		if !strings.Contains(said, "Authorization Violation") {
			t.Errorf("a %s connects as a leaf node, and the server says %q", role, said)
		}
		nc, err := nats.Connect("ws://"+websocket, nats.UserCredentialBytes(c.Text))
		if err != nil {
			t.Errorf("a %s cannot connect with a websocket: %v", role, err)
			continue
		}
		nc.Close()
	}
	if n := s.NumLeafNodes(); n != 0 {
		t.Errorf("the server has %d leaf nodes", n)
	}
}

func TestNoStaticUserOpensALeafNode(t *testing.T) {
	t.Parallel()
	hash, err := auth.HashPassword("correct horse battery")
	if err != nil {
		t.Fatal(err)
	}
	worker := newMember(t, someone(rights.Worker, "w1", "", "HOSTA"), right{})
	config, err := auth.StaticConfig([]auth.StaticUser{{Identity: worker.Identity},
		{Identity: someone(rights.User, "anna", "blue", ""), Password: hash}})
	if err != nil {
		t.Fatal(err)
	}
	part, leaf, websocket := listeners(t)
	startServer(t, config+part)
	for name, prove := range map[string]func(login map[string]any, nonce string){
		"worker": func(login map[string]any, nonce string) {
			login["nkey"], login["sig"] = worker.Key, sign(t, worker.pair, nonce)
		},
		"user": func(login map[string]any, _ string) {
			login["user"], login["pass"] = "user.blue.anna", "correct horse battery"
		},
	} {
		if said := joinAsLeaf(t, leaf, prove); !strings.Contains(said, "Authorization Violation") {
			t.Errorf("a %s connects as a leaf node, and the server says %q", name, said)
		}
	}
	nc, err := nats.Connect("ws://"+websocket, nats.UserInfo("user.blue.anna", "correct horse battery"))
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
}

func sign(t *testing.T, pair nkeys.KeyPair, nonce string) string {
	t.Helper()
	signature, err := pair.Sign([]byte(nonce))
	if err != nil {
		t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString(signature)
}
