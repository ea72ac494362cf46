package join

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
)

// FixedKey is the key in the datastore with the fixed settings of the cluster, as a JSON
// object. The first start of the cluster writes it. So a snapshot has it, too.
const FixedKey = "/kedge/settings"

// Fixed are the settings that no later start can change. Addresses of Services and pods
// are of the ranges, and tokens and running pods name the domain.
var Fixed = []string{"cluster-cidr", "service-cidr", "cluster-domain"}

// settingsPatience limits how long the datastore may take to answer.
const settingsPatience = 30 * time.Second

// NewFixedSettings returns the component that compares this server's settings with those
// with which the cluster began. It fails if one of Fixed differs. The API server runs
// after it: with another range it would end again and again, or lose Services.
func NewFixedSettings(newClient func() (*clientv3.Client, error), cluster config.Cluster) component.Component {
	return component.Step("settings", func(ctx context.Context) error {
		client, err := newClient()
		if err != nil {
			return err
		}
		defer client.Close()
		ctx, cancel := context.WithTimeout(ctx, settingsPatience)
		defer cancel()
		return compareFixed(ctx, client, cluster)
	})
}

// compareFixed compares the value of FixedKey with the settings of the cluster, or writes it if
// there is none. It writes nothing otherwise: a datastore without space refuses every write, and a
// server must start so that somebody can make space.
func compareFixed(ctx context.Context, store clientv3.KV, cluster config.Cluster) error {
	here := fixed(cluster)
	there, err := readFixed(ctx, store)
	if err == nil && there == nil {
		there, err = writeFixed(ctx, store, here)
	}
	if err != nil {
		return err
	}
	var faults []error
	for _, key := range Fixed {
		// A cluster of an older kedge may lack a key.
		if began := there[key]; began != "" && began != here[key] {
			faults = append(faults, fmt.Errorf("%s is %s, and this cluster began with %s, which cannot be changed: set `%s: %[3]s`. For another value, begin a new cluster", key, here[key], began, key))
		}
	}
	return errors.Join(faults...)
}

// readFixed returns the value of FixedKey, or nil if there is none.
func readFixed(ctx context.Context, store clientv3.KV) (values map[string]string, err error) {
	answer, err := store.Get(ctx, FixedKey)
	if err == nil && len(answer.Kvs) > 0 {
		err = json.Unmarshal(answer.Kvs[0].Value, &values)
	}
	if err != nil {
		return nil, fmt.Errorf("read the cluster's settings in the datastore: %w", err)
	}
	return values, nil
}

// writeFixed writes FixedKey, and returns its value. If another server was faster, that is the value
// of the other server.
func writeFixed(ctx context.Context, store clientv3.KV, here map[string]string) (map[string]string, error) {
	text, err := json.Marshal(here)
	if err != nil {
		return nil, fmt.Errorf("encode settings: %w", err)
	}
	written, err := store.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(FixedKey), "=", 0)).
		Then(clientv3.OpPut(FixedKey, string(text))).Commit()
	if err != nil {
		return nil, fmt.Errorf("write the cluster's settings to the datastore: %w", err)
	}
	if written.Succeeded {
		return here, nil
	}
	return readFixed(ctx, store)
}

// fixed returns the values of Fixed.
func fixed(cluster config.Cluster) map[string]string {
	values := map[string]string{}
	for _, field := range settings(cluster) {
		if slices.Contains(Fixed, field.Key) {
			values[field.Key] = field.String()
		}
	}
	return values
}
