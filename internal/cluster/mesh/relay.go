package mesh

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

const (
	// HelloEvery is how often a node that uses a Relay over UDP sends a hello.
	HelloEvery = 5 * time.Second
	// helloLasts is how long a Relay sends datagrams to the address of a hello.
	helloLasts = 3 * HelloEvery
	// queue is how many frames may wait until a stream takes them. More are lost, as in any network.
	queue = 256
)

// welcome is the first frame of a Relay.
type welcome struct {
	// Server is the name of the server.
	Server string `json:"server"`
	// Session and Key are for hellos to the UDP port Port.
	Session ID     `json:"session"`
	Key     Key    `json:"key"`
	Port    uint16 `json:"port"`
}

// Relay passes datagrams on between the nodes of the cluster. Each server has one. It is safe for concurrent use.
type Relay struct {
	server string
	port   uint16
	rate   rate.Limit
	// send sends a packet from the UDP port. It is nil until that is open.
	send atomic.Pointer[func(to netip.AddrPort, packet []byte)]

	// passed and refused are the numbers of bytes that were passed on, and those that were not because of the rate.
	passed, refused atomic.Uint64

	mu        sync.RWMutex
	nodes     map[ID][]*attachment           // guarded by mu: the newest is the last
	sessions  map[ID]*attachment             // guarded by mu
	addresses map[netip.AddrPort]*attachment // guarded by mu
}

// NewRelay returns the Relay of a server, which will have a UDP port. Each node may send bytesPerSecond through it, or as much as
// it can if that is 0.
func NewRelay(server string, port uint16, bytesPerSecond int64) *Relay {
	limit := rate.Inf
	if bytesPerSecond > 0 {
		limit = rate.Limit(bytesPerSecond)
	}
	return &Relay{
		server: server, port: port, rate: limit,
		nodes: map[ID][]*attachment{}, sessions: map[ID]*attachment{}, addresses: map[netip.AddrPort]*attachment{},
	}
}

// UseUDP says that the UDP port is open. send sends a packet from it. The caller gives packets that arrive there to Packet.
func (r *Relay) UseUDP(send func(to netip.AddrPort, packet []byte)) { r.send.Store(&send) }

// Listen opens the UDP port, and serves it on all addresses until ctx ends. It is for a server without a node. On a node, WireGuard has the port.
func (r *Relay) Listen(ctx context.Context) error {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{Port: int(r.port)})
	if err != nil {
		return fmt.Errorf("open UDP port %d for the mesh: %w", r.port, err)
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	r.UseUDP(func(to netip.AddrPort, packet []byte) { _, _ = conn.WriteToUDPAddrPort(packet, to) })
	buffer := make([]byte, 2*MaxDatagram)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buffer)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read UDP port %d of the mesh: %w", r.port, err)
		}
		r.Packet(netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), buffer[:n])
	}
}

// Passed returns how many bytes of datagrams the Relay has passed on, and how many it has not because a node sent too many.
func (r *Relay) Passed() (passed, refused uint64) { return r.passed.Load(), r.refused.Load() }

// attachment is a stream of a node.
type attachment struct {
	id, session ID
	key         Key
	limit       *rate.Limiter
	frames      chan []byte

	mu     sync.Mutex
	number uint64         // guarded by mu: of the last hello
	seen   netip.AddrPort // guarded by mu: the address from which the last hello came
	until  time.Time      // guarded by mu: when that is too old
}

// Attach serves the stream of a node until the stream or ctx ends. The caller has verified that it is a stream of the node.
func (r *Relay) Attach(ctx context.Context, node string, stream io.ReadWriteCloser) error {
	a := &attachment{id: IDOf(node), limit: rate.NewLimiter(r.rate, burst(r.rate)), frames: make(chan []byte, queue)}
	_, _ = rand.Read(a.session[:]) // it never fails
	_, _ = rand.Read(a.key[:])
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(ctx, func() { _ = stream.Close() })()
	var writing sync.WaitGroup
	defer writing.Wait()
	defer cancel()
	r.add(a)
	defer r.remove(a)
	content, err := json.Marshal(welcome{Server: r.server, Session: a.session, Key: a.key, Port: r.port})
	if err != nil {
		return fmt.Errorf("encode welcome: %w", err)
	}
	a.frames <- appendFrame(nil, frameWelcome, ID{}, content)
	writing.Go(func() {
		defer cancel()
		writeFrames(ctx, stream, a.frames)
	})
	reader, buffer := bufio.NewReaderSize(stream, 16<<10), make([]byte, MaxDatagram)
	for {
		f, err := readFrame(reader, buffer)
		if err != nil {
			return fmt.Errorf("read the stream of node %s: %w", node, err)
		}
		if f.kind == frameData && !r.pass(a, f.id, f.payload) {
			a.queue(appendFrame(nil, frameGone, f.id, nil))
		}
	}
}

// burst returns how many bytes may come at once.
func burst(limit rate.Limit) int { return max(256<<10, int(min(float64(limit)/10, 1<<30))) }

func (r *Relay) add(a *attachment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodes[a.id] = append(slices.Clone(r.nodes[a.id]), a)
	r.sessions[a.session] = a
}

func (r *Relay) remove(a *attachment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := slices.DeleteFunc(slices.Clone(r.nodes[a.id]), func(one *attachment) bool { return one == a })
	if len(left) == 0 {
		delete(r.nodes, a.id)
	} else {
		r.nodes[a.id] = left
	}
	delete(r.sessions, a.session)
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.addresses[a.seen] == a {
		delete(r.addresses, a.seen)
	}
}

// pass passes a datagram of a node on to another one, or returns false if that node has no stream.
func (r *Relay) pass(from *attachment, to ID, datagram []byte) bool {
	r.mu.RLock()
	all := r.nodes[to]
	r.mu.RUnlock()
	if len(all) == 0 {
		return false
	}
	if !from.limit.AllowN(time.Now(), Overhead+len(datagram)) {
		r.refused.Add(uint64(len(datagram)))
		return true
	}
	r.passed.Add(uint64(len(datagram)))
	receiver := all[len(all)-1]
	if address := receiver.address(); address.IsValid() {
		(*r.send.Load())(address, Wrap(KindDeliver, from.id, datagram))
	} else {
		receiver.queue(appendFrame(make([]byte, 0, frameHead+len(datagram)), frameData, from.id, datagram))
	}
	return true
}

// Packet takes a packet of the mesh that has arrived at the UDP port. Packets that no node has sent are ignored.
func (r *Relay) Packet(from netip.AddrPort, packet []byte) {
	kind, ok := KindOf(packet)
	switch {
	case !ok:
	case kind == KindHello:
		r.hello(from, packet)
	case kind == KindSend:
		id, datagram, ok := Unwrap(packet)
		r.mu.RLock()
		sender := r.addresses[from]
		r.mu.RUnlock()
		if ok && sender != nil && len(datagram) <= MaxDatagram && !r.pass(sender, id, datagram) {
			sender.queue(appendFrame(nil, frameGone, id, nil))
		}
	}
}

// hello takes note of the address of a node, and tells it to the node.
func (r *Relay) hello(from netip.AddrPort, packet []byte) {
	session, ok := HelloSession(packet)
	r.mu.RLock()
	a := r.sessions[session]
	r.mu.RUnlock()
	send := r.send.Load()
	if !ok || a == nil || send == nil {
		return
	}
	number, _, err := OpenHello(packet, &a.key)
	if err != nil {
		return
	}
	r.mu.Lock()
	moved := r.sessions[session] == a && a.move(number, from, r.addresses)
	r.mu.Unlock()
	if moved {
		(*send)(from, sealHello(KindSeen, session, &a.key, number, from))
	}
}

// move takes the address of a hello, unless the hello is an older one that somebody has sent again.
func (a *attachment) move(number uint64, to netip.AddrPort, addresses map[netip.AddrPort]*attachment) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if number <= a.number {
		return false
	}
	if a.seen != to && addresses[a.seen] == a {
		delete(addresses, a.seen)
	}
	a.number, a.seen, a.until = number, to, time.Now().Add(helloLasts)
	addresses[to] = a
	return true
}

// address returns where the node takes packets, or none.
func (a *attachment) address() netip.AddrPort {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Now().After(a.until) {
		return netip.AddrPort{}
	}
	return a.seen
}

// queue sends a frame, unless too many wait.
func (a *attachment) queue(frame []byte) {
	select {
	case a.frames <- frame:
	default:
	}
}

// writeFrames writes frames to a stream until that fails or ctx ends.
func writeFrames(ctx context.Context, stream io.Writer, frames <-chan []byte) {
	writer := bufio.NewWriterSize(stream, 16<<10)
	for {
		select {
		case frame := <-frames:
			_, err := writer.Write(frame)
			if err == nil && len(frames) == 0 {
				err = writer.Flush()
			}
			if err != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
