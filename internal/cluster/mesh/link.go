package mesh

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"
)

// Link is a node's end of a stream to the Relay of a server. It is safe for concurrent use.
type Link struct {
	// Server is the name of the server.
	Server string
	// UDP is where the Relay may answer over UDP. It is not valid for the Relay in this process.
	UDP    netip.AddrPort
	first  welcome
	frames chan []byte

	mu     sync.Mutex
	number uint64         // guarded by mu: of the last hello
	sent   time.Time      // guarded by mu: when that was sent
	seen   netip.AddrPort // guarded by mu: the own address, as the Relay has seen it last
	until  time.Time      // guarded by mu: until when the Relay may be used over UDP
}

// Receiver is what a Link tells its node.
type Receiver interface {
	// Opened is called when the Link can be used, and Closed when it has ended.
	Opened(*Link)
	Closed(*Link)
	// Received is called with each datagram of another node. It must not keep the datagram.
	Received(link *Link, from ID, datagram []byte)
	// Gone is called if the Relay does not know a node.
	Gone(link *Link, node ID)
}

// Serve speaks with the Relay at the other end of stream, until the stream or ctx ends. host is the server's address.
func Serve(ctx context.Context, host netip.Addr, stream io.ReadWriteCloser, receiver Receiver) error {
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(ctx, func() { _ = stream.Close() })()
	var writing sync.WaitGroup
	defer writing.Wait()
	defer cancel()
	reader, buffer := bufio.NewReaderSize(stream, 16<<10), make([]byte, MaxDatagram)
	f, err := readFrame(reader, buffer)
	if err != nil {
		return fmt.Errorf("read the welcome of a server: %w", err)
	}
	l := &Link{frames: make(chan []byte, queue), number: uint64(time.Now().UnixNano())}
	if f.kind != frameWelcome {
		return errors.New("the stream of a server does not begin with a welcome")
	}
	if err := json.Unmarshal(f.payload, &l.first); err != nil {
		return fmt.Errorf("decode the welcome of a server: %w", err)
	}
	l.Server = l.first.Server
	if host.IsValid() {
		l.UDP = netip.AddrPortFrom(host.Unmap(), l.first.Port)
	}
	writing.Go(func() {
		defer cancel()
		writeFrames(ctx, stream, l.frames)
	})
	receiver.Opened(l)
	defer receiver.Closed(l)
	for {
		f, err := readFrame(reader, buffer)
		if err != nil {
			return fmt.Errorf("read the stream of server %s: %w", l.Server, err)
		}
		switch f.kind {
		case frameData:
			receiver.Received(l, f.id, f.payload)
		case frameGone:
			receiver.Gone(l, f.id)
		}
	}
}

// Hello returns a hello to send to UDP.
func (l *Link) Hello() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.number++
	l.sent = time.Now()
	return SealHello(l.first.Session, &l.first.Key, l.number)
}

// IsAnswer tells whether a packet may be an answer of this Relay to a hello.
func (l *Link) IsAnswer(packet []byte) bool {
	session, ok := HelloSession(packet)
	return ok && session == l.first.Session
}

// Answered takes the answer to a hello. It returns true if the own address is another one than before.
func (l *Link) Answered(packet []byte) (moved bool) {
	number, seen, err := OpenHello(packet, &l.first.Key)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil || number != l.number {
		return false
	}
	moved = l.seen != seen
	l.seen, l.until = seen, l.sent.Add(helloLasts-HelloEvery)
	return moved
}

// Seen returns the own address, as the Relay has seen it last, and whether the Relay may be used over UDP now.
func (l *Link) Seen() (address netip.AddrPort, usable bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen, time.Now().Before(l.until)
}

// Send sends a datagram to another node by the stream. If too many wait, the datagram is lost.
func (l *Link) Send(to ID, datagram []byte) {
	select {
	case l.frames <- appendFrame(make([]byte, 0, frameHead+len(datagram)), frameData, to, datagram):
	default:
	}
}
