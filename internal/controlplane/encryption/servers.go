package encryption

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Server is an API server of the cluster.
type Server struct {
	Address string `json:"address"`
	// Knows is true if the server's kedge knows of keys at all. Enabled is the
	// server's secrets-encryption.
	Knows   bool `json:"knows"`
	Enabled bool `json:"enabled"`
}

// self describes this server.
func (e *Encryption) self() Server {
	return Server{Address: e.cfg.Address, Knows: true, Enabled: e.cfg.Enabled}
}

// announce writes this server's setting into a shared datastore. It runs before the
// API server, whose address is in the datastore as long as it runs. So an address
// without a setting is that of a kedge that knows of no keys.
func (e *Encryption) announce(ctx context.Context) error {
	if !e.cfg.Shared {
		return nil
	}
	text, err := json.Marshal(e.self())
	if err != nil {
		return err
	}
	name := serversPrefix + e.cfg.Address
	answer, err := e.client.Get(ctx, name)
	if err == nil && (len(answer.Kvs) == 0 || string(answer.Kvs[0].Value) != string(text)) {
		var revision int64
		if len(answer.Kvs) > 0 {
			revision = answer.Kvs[0].ModRevision
		}
		_, err = putIf(ctx, e.client, name, string(text), revision)
	}
	if err != nil {
		return fmt.Errorf("tell the datastore of this server: %w", err)
	}
	return nil
}

// servers returns all API servers that are running.
func (e *Encryption) servers(ctx context.Context) ([]Server, error) {
	if !e.cfg.Shared {
		return []Server{e.self()}, nil
	}
	// pkg/controlplane/reconcilers/lease.go of Kubernetes writes these keys.
	//upstream:relies-on k8s.io/kubernetes/pkg/controlplane/reconcilers/lease.go storageLeases.UpdateLease
	//upstream:relies-on k8s.io/kubernetes/pkg/controlplane/instance.go Config.createLeaseReconciler
	leases := path.Join(e.cfg.Prefix, "masterleases") + "/"
	running, err := e.client.Get(ctx, leases, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, fmt.Errorf("ask the datastore for the API servers: %w", err)
	}
	answer, err := e.client.Get(ctx, serversPrefix, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("ask the datastore for the servers: %w", err)
	}
	addresses := []string{e.cfg.Address}
	for _, kv := range running.Kvs {
		addresses = append(addresses, strings.TrimPrefix(string(kv.Key), leases))
	}
	slices.Sort(addresses)
	told := map[string]Server{}
	for _, kv := range answer.Kvs {
		var server Server
		if err := json.Unmarshal(kv.Value, &server); err != nil {
			return nil, fmt.Errorf("decode %s: %w", kv.Key, err)
		}
		told[server.Address] = server
	}
	var found []Server
	for _, address := range slices.Compact(addresses) {
		server := told[address]
		server.Address = address
		found = append(found, server)
	}
	return found, nil
}

// agree returns nil if all servers have the same setting as this one. Otherwise
// its error says what to do.
func (e *Encryption) agree(ctx context.Context) error {
	servers, err := e.servers(ctx)
	if err != nil {
		return err
	}
	var faults []error
	for _, server := range servers {
		switch {
		case !server.Knows:
			faults = append(faults, fmt.Errorf("the server at %s runs an older kedge, which cannot read encrypted Secrets: upgrade it", server.Address))
		case server.Enabled != e.cfg.Enabled:
			faults = append(faults, fmt.Errorf("the server at %s has secrets-encryption: %t, and the one at %s has %t: set the same value on all servers, and restart them",
				server.Address, server.Enabled, e.cfg.Address, e.cfg.Enabled))
		}
	}
	return errors.Join(faults...)
}
