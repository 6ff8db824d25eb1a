package packet

import (
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

// Conn is one end of a connection. One goroutine may send while another one receives.
type Conn struct {
	conn *net.UnixConn
	in   []byte
	oob  []byte

	sender *unix.Ucred // of the newest packet; nil: unknown
}

// The kinds of packets. A message longer than [MaxBody] is sent as parts, which the last packet completes.
const (
	Part    byte = 'p' // the beginning of a message
	Message byte = 'm' // the end of a message, or a whole one; its body is a control.FileCall or a control.FileReply
	Data    byte = 'd' // bytes of a stream
	End     byte = 'e' // the end of a stream from the worker
)

// MaxBody is the maximum size of a packet's body in bytes. It fits into the default buffer of a socket.
const MaxBody = 64 << 10

// New takes over a connection.
func New(conn *net.UnixConn) *Conn {
	return &Conn{conn: conn, in: make([]byte, 1+MaxBody), oob: make([]byte, oobSpace)}
}

// oobSpace is the space for the descriptors and the credentials of one packet.
var oobSpace = unix.CmsgSpace(4*MostDescriptors) + unix.CmsgSpace(unix.SizeofUcred)

// Sender returns the user, in this process's user namespace, that the kernel says has sent the newest packet. It is
// false if the socket lacks the option SO_PASSCRED, or lacked it when the packet was sent.
func (p *Conn) Sender() (uid uint32, known bool) {
	if p.sender == nil || p.sender.Pid == 0 {
		return 0, false
	}
	return p.sender.Uid, true
}

// Socket returns the socket, for its deadlines.
func (p *Conn) Socket() *net.UnixConn { return p.conn }

// Close closes the connection. It does not wait for descriptors that the peer has sent.
func (p *Conn) Close() error { return Release(p.conn) }

// NewData returns a buffer for [Conn.SendData]. The bytes to send begin at DataAt.
func NewData() []byte { return make([]byte, DataAt+MaxBody) }

// DataAt is where the bytes begin in a buffer from [NewData].
const DataAt = 1

// SendData sends n bytes of a buffer from [NewData].
func (p *Conn) SendData(buf []byte, n int) error {
	buf[0] = Data
	_, err := p.conn.Write(buf[:DataAt+n])
	return err
}

// SendEnd says that the stream has ended.
func (p *Conn) SendEnd() error { return p.send(End, nil) }

// SendMessage sends a message, with a descriptor unless file is negative.
func (p *Conn) SendMessage(v any, file int) error {
	body := protocol.Encode(v)
	for len(body) > MaxBody {
		if err := p.send(Part, body[:MaxBody]); err != nil {
			return err
		}
		body = body[MaxBody:]
	}
	if file < 0 {
		return p.send(Message, body)
	}
	_, _, err := p.conn.WriteMsgUnix(append([]byte{Message}, body...), unix.UnixRights(file), nil)
	return err
}

func (p *Conn) send(kind byte, body []byte) error {
	_, err := p.conn.Write(append([]byte{kind}, body...))
	return err
}

// Receive returns the next packet. The body is valid until the next call. file is -1, or a descriptor that the caller
// must close with [Discard] or keep. io.EOF means that the peer closed the connection.
func (p *Conn) Receive() (kind byte, body []byte, file int, err error) {
	n, oobn, flags, _, err := p.conn.ReadMsgUnix(p.in, p.oob)
	file, extra := descriptors(p.oob[:max(oobn, 0)])
	p.sender = credentials(p.oob[:max(oobn, 0)])
	for _, fd := range extra {
		Discard(fd)
	}
	switch {
	case errors.Is(err, io.EOF), err == nil && n == 0:
		err = io.EOF
	case err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		err = fmt.Errorf("packet: a packet has more than %d bytes, or its descriptor did not arrive", MaxBody)
	case err == nil && len(extra) > 0:
		err = errors.New("packet: a packet has several descriptors")
	}
	if err != nil {
		Discard(file)
		return 0, nil, -1, err
	}
	return p.in[0], p.in[1:n], file, nil
}

// descriptors returns the first descriptor of a control message, or -1, and the others.
func descriptors(oob []byte) (first int, extra []int) {
	first = -1
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return first, nil
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if first < 0 {
				first = fd
			} else {
				extra = append(extra, fd)
			}
		}
	}
	return first, extra
}

// credentials returns the credentials in a control message, or nil.
func credentials(oob []byte) *unix.Ucred {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range messages {
		if cred, err := unix.ParseUnixCredentials(&messages[i]); err == nil {
			return cred
		}
	}
	return nil
}

// Collector puts the parts of messages together.
type Collector struct {
	Limit int // maximum size of a message in bytes
	parts []byte
}

// Add adds the body of a packet of kind [Part] or [Message]. If the message is complete, Add decodes it
// into v and returns true.
func (c *Collector) Add(kind byte, body []byte, v any) (complete bool, err error) {
	if len(c.parts)+len(body) > c.Limit {
		return false, fmt.Errorf("packet: a message has more than %d bytes", c.Limit)
	}
	if kind == Part {
		c.parts = append(c.parts, body...)
		return false, nil
	}
	if len(c.parts) > 0 {
		body = append(c.parts, body...)
		c.parts = nil
	}
	return true, protocol.DecodeFileMessage(body, v, false)
}
