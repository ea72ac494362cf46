package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/server/v3/etcdserver"
)

// Reset makes the member in cfg.Dir the only one of its cluster. It fails if
// there is no member.
func Reset(ctx context.Context, cfg Config) error {
	m := New(cfg)
	if !Exists(cfg.Dir) {
		return fmt.Errorf("there is no etcd member in %s to reset: this server keeps its state elsewhere", cfg.Dir)
	}
	config, err := m.config("", true)
	if err != nil {
		return err
	}
	config.ForceNewCluster = true
	etcd, err := m.start(config)
	if err != nil {
		return err
	}
	defer m.peers.http.CloseIdleConnections()
	defer stop(etcd)
	poll := time.NewTicker(retry)
	defer poll.Stop()
	for {
		select {
		case <-etcd.Server.ReadyNotify():
			if len(etcd.Server.Cluster().Members()) == 1 {
				return m.own(ctx, etcd.Server)
			}
			<-poll.C
		case <-etcd.Server.StopNotify():
			return errors.New("etcd stopped while it was reset")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// own tells the cluster this member's present address.
func (m *Member) own(ctx context.Context, server *etcdserver.EtcdServer) error {
	client := m.newClient(server).Client
	defer client.Close()
	return m.announce(ctx, client, server)
}
