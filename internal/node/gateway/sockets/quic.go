package sockets

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/kedge-dev/kedge/internal/node/gateway/hosts"
)

// retryShare is the part of all connections from which on new clients of QUIC prove their
// address first, which takes another round trip.
const retryShare = 8

// errTooMany refuses a connection.
var errTooMany = errors.New("too many connections")

// quicSocket serves HTTP/3.
type quicSocket struct {
	*Sockets
	packets   *net.UDPConn
	transport *quic.Transport
	listener  *quic.EarlyListener
	server    *http3.Server
	settings  atomic.Pointer[settings]
	working   sync.WaitGroup
}

func (s *Sockets) listenQUIC(address string, settings *settings) (*quicSocket, error) {
	packets, err := listenPackets(address)
	if err != nil {
		return nil, err
	}
	q := &quicSocket{Sockets: s, packets: packets}
	q.settings.Store(settings)
	q.transport = &quic.Transport{Conn: packets, ConnContext: q.admit, VerifySourceAddress: q.busy}
	q.listener, err = q.transport.ListenEarly(http3.ConfigureTLSConfig(&tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{h3Protocol}, GetConfigForClient: q.configFor,
	}), &quic.Config{
		HandshakeIdleTimeout: s.patience.header, MaxIdleTimeout: s.patience.idle,
		MaxIncomingStreams: maxStreams, MaxStreamReceiveWindow: streamWindow, MaxConnectionReceiveWindow: connectionWindow,
	})
	if err != nil {
		_ = packets.Close()
		return nil, err
	}
	q.server = &http3.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			q.answer(w, r, q.settings.Load(), false)
		}),
		MaxHeaderBytes: maxHeader, IdleTimeout: s.patience.idle,
	}
	q.working.Go(func() { _ = q.server.ServeListener(q.listener) })
	return q, nil
}

// admit counts a connection that begins.
func (q *quicSocket) admit(ctx context.Context, info *quic.ClientInfo) (context.Context, error) {
	settings := q.settings.Load()
	client := addressOf(info.RemoteAddr)
	if !q.connections.take(client, settings.trusts(client)) {
		q.full(settings.name)
		return nil, errTooMany
	}
	closed := q.metrics.opened(settings.name)
	context.AfterFunc(ctx, func() {
		q.connections.give(client)
		closed()
	})
	return new(hosts.Handshake).In(ctx), nil
}

// busy tells whether new clients must prove their address.
func (q *quicSocket) busy(net.Addr) bool {
	return q.connections.count() > q.cfg.MaxConnections/retryShare
}

// configFor implements tls.Config.GetConfigForClient.
func (q *quicSocket) configFor(info *tls.ClientHelloInfo) (*tls.Config, error) {
	name, listener := q.settings.Load().decide(info)
	if listener == nil {
		return unknown(true), nil
	}
	if handshake := hosts.HandshakeOf(info.Context()); handshake != nil {
		handshake.Decide(listener.shownBy(name))
	}
	return listener.config, nil
}

func (q *quicSocket) set(settings *settings) {
	if settings != nil {
		q.settings.Store(settings)
	}
}

// drain implements socket. HTTP/3 knows only GOAWAY, which ends a connection: see end.
func (q *quicSocket) drain(bool) {}

// end implements socket.
func (q *quicSocket) end(_, patience time.Duration) {
	// The listener is closed first: http3.Server.Shutdown counts on no more connections.
	_ = q.listener.Close()
	q.working.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = q.server.Shutdown(ctx)
	_ = q.transport.Close()
	_ = q.packets.Close()
}
