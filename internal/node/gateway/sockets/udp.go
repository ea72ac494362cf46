package sockets

import (
	"container/list"
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// largestDatagram is what fits into a datagram of UDP.
	largestDatagram = 65535
	// mostAnswered is how many bytes a client gets before it has sent a second datagram. The
	// address of a client that has sent only one may be somebody else's.
	mostAnswered = 64 << 10
	// sweeps is how often sessions are looked at in the time that a new one may be idle.
	sweeps = 4
)

// udpSocket forwards datagrams. Each client has a session: a socket that is connected to an
// endpoint.
type udpSocket struct {
	*Sockets
	packets  *net.UDPConn
	settings atomic.Pointer[settings]
	working  sync.WaitGroup
	buffers  sync.Pool

	mu       sync.Mutex
	sessions map[client]*session
	// fresh are the sessions whose client has sent one datagram, the oldest first. The first
	// of them makes room for a new one.
	fresh  *list.List
	sweep  *time.Timer
	closed bool
}

// client is who a session is for: the address that sends, and where it sends to.
type client struct {
	from netip.AddrPort
	to   destination
}

type session struct {
	client
	backend  *net.UDPConn
	endpoint netip.AddrPort
	// namespace is that of the backend.
	namespace string
	// control makes answers come from the right address.
	control []byte
	// last is when the session has carried something, in nanoseconds since 1970.
	last atomic.Int64
	// answered counts the bytes of answers until the client has sent again.
	answered atomic.Int64
	// known says that the client has sent again after its first datagram.
	known atomic.Bool
	// closed counts the session in the metrics no longer.
	closed func()
	// place is in udpSocket.fresh, or nil.
	place *list.Element
}

func (s *Sockets) listenUDP(address string, settings *settings) (*udpSocket, error) {
	packets, err := listenPackets(address)
	if err != nil {
		return nil, err
	}
	if err := wantDestinations(packets); err != nil {
		_ = packets.Close()
		return nil, err
	}
	u := &udpSocket{Sockets: s, packets: packets, sessions: map[client]*session{}, fresh: list.New()}
	u.buffers.New = func() any { return new([largestDatagram]byte) }
	u.settings.Store(settings)
	u.working.Go(u.receive)
	return u, nil
}

// receive takes datagrams of clients until the socket is closed.
func (u *udpSocket) receive() {
	buffer, control := make([]byte, largestDatagram), make([]byte, controlSize)
	for {
		n, c, _, from, err := u.packets.ReadMsgUDPAddrPort(buffer, control)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			u.log.Debugf("Cannot receive a datagram of %s: %v", u.settings.Load().name, err)
			time.Sleep(acceptPause)
			continue
		}
		u.forward(client{netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), destinationOf(control[:c])}, buffer[:n])
	}
}

// forward sends a datagram of a client to its endpoint.
func (u *udpSocket) forward(client client, datagram []byte) {
	for range mostDials {
		session := u.session(client)
		if session == nil {
			return
		}
		if _, err := session.backend.Write(datagram); err == nil {
			return
		}
		// The endpoint has not taken an earlier datagram. Another one may take this.
		u.drop(session)
	}
}

// session returns the session of a client that has sent a datagram. It makes one if there is
// none, or returns nil if it cannot.
func (u *udpSocket) session(client client) *session {
	u.mu.Lock()
	defer u.mu.Unlock()
	if found := u.sessions[client]; found != nil {
		found.last.Store(time.Now().UnixNano())
		found.known.Store(true)
		if found.place != nil {
			u.fresh.Remove(found.place)
			found.place = nil
		}
		return found
	}
	settings := u.settings.Load()
	backend, endpoints := u.endpoints(settings.stream)
	if u.closed || len(endpoints) == 0 {
		return nil
	}
	namespace := namespaceOf(backend)
	if !u.roomLocked(client.from.Addr(), settings, namespace) {
		u.full(settings.name)
		return nil
	}
	socket, err := u.cfg.Dial(context.Background(), "udp", endpoints[0])
	if err != nil {
		u.streams.give(namespace)
		u.connections.give(client.from.Addr())
		u.log.Debugf("Cannot forward datagrams of %s to %s: %v", client.from, endpoints[0], err)
		return nil
	}
	made := &session{
		client: client, backend: socket.(*net.UDPConn), namespace: namespace, endpoint: endpoints[0],
		control: client.to.control(), closed: u.metrics.opened(settings.name),
	}
	made.last.Store(time.Now().UnixNano())
	made.place = u.fresh.PushBack(made)
	u.sessions[client] = made
	u.working.Go(func() { u.relay(made) })
	if u.sweep == nil {
		u.sweep = time.AfterFunc(u.patience.newSession/sweeps, u.expire)
	}
	return made
}

// roomLocked counts a new session. If there are too many, the oldest one ends whose client has sent
// only once: such sessions may be those of forged addresses.
func (u *udpSocket) roomLocked(client netip.Addr, settings *settings, namespace string) bool {
	if u.take(client, settings, namespace) {
		return true
	}
	oldest := u.fresh.Front()
	if oldest == nil {
		return false
	}
	u.removeLocked(oldest.Value.(*session))
	return u.take(client, settings, namespace)
}

// take counts a session of a client to the backends of a namespace, unless there are too many.
func (u *udpSocket) take(client netip.Addr, settings *settings, namespace string) bool {
	if !u.streams.take(namespace) {
		return false
	}
	if !u.connections.take(client, settings.trusts(client)) {
		u.streams.give(namespace)
		return false
	}
	return true
}

// relay sends what the endpoint of a session says to the client.
func (u *udpSocket) relay(session *session) {
	defer u.drop(session)
	raw, err := session.backend.SyscallConn()
	for err == nil {
		err = u.relayOne(session, raw)
	}
}

// relayOne waits for one datagram and sends it to the client. A session that waits has no
// buffer: there may be many.
func (u *udpSocket) relayOne(session *session, raw syscall.RawConn) error {
	var buffer *[largestDatagram]byte
	var n int
	var failed error
	err := raw.Read(func(fd uintptr) bool {
		buffer = u.buffers.Get().(*[largestDatagram]byte)
		for {
			if n, failed = unix.Read(int(fd), buffer[:]); !errors.Is(failed, unix.EINTR) {
				break
			}
		}
		if errors.Is(failed, unix.EAGAIN) {
			u.buffers.Put(buffer)
			buffer = nil
		}
		return buffer != nil
	})
	if buffer == nil {
		return err
	}
	defer u.buffers.Put(buffer)
	if failed != nil {
		return failed // such as ECONNREFUSED: nobody listens there
	}
	if !session.known.Load() && session.answered.Add(int64(n)) > mostAnswered {
		return nil
	}
	session.last.Store(time.Now().UnixNano())
	if _, _, err := u.packets.WriteMsgUDPAddrPort(buffer[:n], session.control, session.from); errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil // The network may lose datagrams, and so may this.
}

// drop ends a session.
func (u *udpSocket) drop(session *session) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.removeLocked(session)
}

// removeLocked ends a session, unless it has ended already.
func (u *udpSocket) removeLocked(session *session) {
	if u.sessions[session.client] != session {
		return
	}
	delete(u.sessions, session.client)
	if session.place != nil {
		u.fresh.Remove(session.place)
		session.place = nil
	}
	_ = session.backend.Close()
	u.connections.give(session.from.Addr())
	u.streams.give(session.namespace)
	session.closed()
}

// expire ends the sessions that are idle.
func (u *udpSocket) expire() {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	for _, session := range u.sessions {
		limit := u.patience.newSession
		if session.known.Load() {
			limit = u.patience.session
		}
		if now.Sub(time.Unix(0, session.last.Load())) > limit {
			u.removeLocked(session)
		}
	}
	if u.sweep = nil; len(u.sessions) == 0 {
		u.sessions = map[client]*session{} // A map does not shrink.
	} else if !u.closed {
		u.sweep = time.AfterFunc(u.patience.newSession/sweeps, u.expire)
	}
}

// set implements socket. Sessions to endpoints that are no longer any of the route end.
func (u *udpSocket) set(settings *settings) {
	if settings != nil {
		u.settings.Store(settings)
	}
	wanted := map[netip.AddrPort]bool{}
	if split := u.settings.Load().stream; split != nil {
		for i := range split.Targets {
			if backend := u.state.Load().Backends[split.Targets[i].Backend]; backend != nil && split.Targets[i].Fault == 0 {
				for _, endpoint := range backend.Endpoints {
					wanted[endpoint] = true
				}
			}
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, session := range u.sessions {
		if !wanted[session.endpoint] {
			u.removeLocked(session)
		}
	}
}

// drain implements socket. UDP has no way to tell a client.
func (u *udpSocket) drain(bool) {}

// end implements socket. Nobody knows when a session of UDP has ended, so all end at once.
func (u *udpSocket) end(_, _ time.Duration) {
	_ = u.packets.Close()
	u.mu.Lock()
	u.closed = true
	if u.sweep != nil {
		u.sweep.Stop()
	}
	for _, session := range u.sessions {
		u.removeLocked(session)
	}
	u.mu.Unlock()
	u.working.Wait()
}
