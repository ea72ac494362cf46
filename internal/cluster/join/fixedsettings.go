package join

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/loop"
)

// FixedKey is the key in the datastore with the fixed settings of the cluster, as a JSON
// object. The first start of the cluster writes it. So a snapshot has it, too.
const FixedKey = "/kedge/settings"

// Fixed are the settings that no later start can change. Addresses of Services and pods
// are of the ranges, and tokens and running pods name the domain.
var Fixed = []string{"cluster-cidr", "service-cidr", "cluster-domain"}

// NewFixedSettings returns the component that compares this server's settings with those
// with which the cluster began. It fails if one of Fixed differs. The API server runs
// after it: with another range it would end again and again, or lose Services. It waits for a
// datastore that does not answer, or is slow.
func NewFixedSettings(newClient func() (*clientv3.Client, error), cluster config.Cluster) component.Component {
	return component.Step("settings", func(ctx context.Context) error {
		client, err := newClient()
		if err != nil {
			return err
		}
		defer client.Close()
		return compareFixed(ctx, client, cluster)
	})
}

// compareFixed compares the value of FixedKey with the settings of the cluster, or writes it if
// there is none. It writes nothing otherwise: a datastore without space refuses every write, and a
// server must start so that somebody can make space.
func compareFixed(ctx context.Context, store clientv3.KV, cluster config.Cluster) error {
	here := fixed(cluster)
	text, err := storedFixed(ctx, store, here)
	if err != nil {
		return err
	}
	var there map[string]string
	if err := json.Unmarshal(text, &there); err != nil {
		return fmt.Errorf("decode the cluster's settings at %s in the datastore: %w", FixedKey, err)
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

// storedFixed returns the value of FixedKey, which it writes if there is none. It asks until the
// datastore answers, or ctx ends.
func storedFixed(ctx context.Context, store clientv3.KV, here map[string]string) ([]byte, error) {
	var text []byte
	asking := loop.Loop{Log: logrus.WithField("component", "settings"), First: tokenRetry, Last: tokenRetry}
	err := asking.Until(ctx, func(ctx context.Context) error {
		var err error
		text, err = readFixed(ctx, store)
		if err == nil && text == nil {
			text, err = writeFixed(ctx, store, here)
		}
		if err != nil {
			err = fmt.Errorf("compare this server's settings with the cluster's: %w", err)
		}
		if ctx.Err() == nil {
			component.Report(ctx, err)
		}
		return err
	})
	return text, err
}

// readFixed returns the value of FixedKey, or nil if there is none.
func readFixed(ctx context.Context, store clientv3.KV) ([]byte, error) {
	answer, err := store.Get(ctx, FixedKey)
	if err != nil {
		return nil, fmt.Errorf("read the cluster's settings in the datastore: %w", err)
	}
	if len(answer.Kvs) == 0 {
		return nil, nil
	}
	return answer.Kvs[0].Value, nil
}

// writeFixed writes FixedKey, and returns its value. If another server was faster, that is the value
// of the other server.
func writeFixed(ctx context.Context, store clientv3.KV, here map[string]string) ([]byte, error) {
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
		return text, nil
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
