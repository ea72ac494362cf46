package adopt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/controlplane/encryption"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/etcd"
	"github.com/kedge-dev/kedge/internal/datastore/sqldb"
	"github.com/kedge-dev/kedge/internal/datastore/sqlite"
)

// oldest is the oldest version of k3s whose state was tested.
const oldest = "1.21.0"

// takeObjects writes the objects into the datastore of the new server. It reads k3s's
// datastore twice, because what is left out is known only when all was seen.
func (a *adoption) takeObjects(ctx context.Context) error {
	export, isEtcd, err := a.source()
	if err != nil {
		return err
	}
	keys, err := a.k3s.secrets()
	if err != nil {
		return err
	}
	o := newObjects(keys, &a.Settings.Cluster)
	_, _, err = export(ctx, func(e *mvccpb.Event) error {
		if e.Type == mvccpb.DELETE {
			o.remove(string(e.Kv.Key))
			return nil
		}
		return o.look(ctx, string(e.Kv.Key), e.Kv.Value, e.Kv.ModRevision)
	})
	if err != nil {
		return err
	}
	o.decide()
	if err := errors.Join(o.checkVersion(), o.checkRanges()); err != nil {
		return err
	}
	a.describe(o)
	taken, err := a.take(ctx, export, o)
	if err != nil {
		return err
	}
	if isEtcd || a.Settings.Server.ClusterInit {
		return etcd.Migrate(ctx, etcd.Config{Dir: a.made.Etcd(), Node: a.node.Name, Address: a.node.IPs[0].String(), Args: a.Settings.Server.EtcdArgs}, taken)
	}
	return sqlite.New(sqlite.Config{Dir: a.made.ServerDB(), Socket: datadir.DatastoreSocket}).Import(ctx, taken)
}

// source returns what reads k3s's datastore.
func (a *adoption) source() (export datastore.Export, isEtcd bool, err error) {
	scratch := filepath.Join(string(a.made), "k3s")
	member, file := a.k3s.server("db", "etcd"), a.k3s.server("db", "state.db")
	_, missing := os.Stat(file)
	switch settings := a.k3s.settings.Config.Server.Datastore; {
	case settings.IsEtcd():
		return nil, false, errors.New("k3s keeps its objects in an etcd of your own (datastore-endpoint), which kedge does not adopt: " +
			"with k3s, restore a snapshot of it into k3s's embedded etcd (`k3s server --cluster-init --cluster-reset --cluster-reset-restore-path FILE`) first")
	case settings.Endpoint != "":
		store, err := sqldb.New(sqldb.Config{
			Endpoint: settings.Endpoint, Socket: datadir.DatastoreSocket,
			TLS: datastore.TLS{CAFile: settings.CAFile, CertFile: settings.CertFile, KeyFile: settings.KeyFile},
		})
		if err != nil {
			return nil, false, fmt.Errorf("use k3s's datastore-endpoint: %w", err)
		}
		return store.Export, false, nil
	case etcd.Exists(member):
		return etcd.Stopped{Dir: member, Scratch: scratch}.Export, true, nil
	case errors.Is(missing, fs.ErrNotExist):
		return nil, false, fmt.Errorf("k3s keeps no objects on this host: there is neither %s nor %s, and its configuration has no datastore-endpoint. Run this command on a server of k3s that has them", file, member)
	}
	// SQLite changes a database that it reads.
	for _, part := range []string{"", "-wal"} {
		info, err := os.Stat(file + part)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = copyFile(file+part, filepath.Join(scratch, "state.db"+part), info)
		}
		if err != nil {
			return nil, false, fmt.Errorf("copy k3s's database: %w", err)
		}
	}
	return sqlite.New(sqlite.Config{Dir: scratch}).Export, false, nil
}

// take returns an Export of what the new server stores: the last value of each object
// that is taken, and the key of its Secrets.
func (a *adoption) take(ctx context.Context, export datastore.Export, o *objects) (datastore.Export, error) {
	var keyName string
	var sealed []byte
	var encrypt value.Transformer
	if a.Settings.Server.SecretsEncryption {
		var err error
		if keyName, sealed, encrypt, err = encryption.NewKeys(ctx, a.under); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context, each func(*mvccpb.Event) error) (int64, int64, error) {
		var last int64
		revision, _, err := export(ctx, func(e *mvccpb.Event) error {
			key := string(e.Kv.Key)
			f := o.found[key]
			if f == nil || e.Type == mvccpb.DELETE || e.Kv.ModRevision != f.revision || f.reason != "" {
				return nil
			}
			if f.revision <= last {
				return fmt.Errorf("k3s's datastore has two objects of revision %d (%s is one), which kedge's cannot have: change one of them with k3s", f.revision, key)
			}
			last = f.revision
			text, err := o.taken(ctx, key, e.Kv.Value)
			if err == nil && encrypt != nil && isSecret(key) {
				text, err = encrypt.TransformToStorage(ctx, text, value.DefaultContext(key))
			}
			if err != nil {
				return err
			}
			return each(&mvccpb.Event{Kv: &mvccpb.KeyValue{
				Key: e.Kv.Key, Value: text, CreateRevision: e.Kv.CreateRevision, ModRevision: e.Kv.ModRevision,
				Version: e.Kv.Version, Lease: e.Kv.Lease,
			}})
		})
		if err != nil || encrypt == nil {
			return revision, revision, err
		}
		revision++
		return revision, revision, each(&mvccpb.Event{Kv: &mvccpb.KeyValue{
			Key: []byte(keyName), Value: sealed, CreateRevision: revision, ModRevision: revision,
		}})
	}, nil
}

// checkVersion refuses the state of a k3s that is too old, or newer than kedge. Its
// version is the newest of its nodes' versions. A cluster without nodes tells none.
func (o *objects) checkVersion() error {
	var newest *utilversion.Version
	for _, node := range o.nodes {
		if v, err := utilversion.ParseSemantic(node.Status.NodeInfo.KubeletVersion); err == nil && (newest == nil || newest.LessThan(v)) {
			newest = v
		}
	}
	own := utilversion.MustParseSemantic(version.Version)
	switch {
	case newest == nil:
	case newest.LessThan(utilversion.MustParseSemantic(oldest)):
		return fmt.Errorf("this cluster runs k3s v%s, and kedge reads the state of v%s and later: upgrade k3s first", newest, oldest)
	case newest.Major() > own.Major() || newest.Minor() > own.Minor():
		return fmt.Errorf("this cluster runs k3s v%s, which is newer than Kubernetes %s of this kedge: use kedge v%d.%d or later", newest, release(), newest.Major(), newest.Minor())
	}
	return nil
}

// checkRanges refuses settings with other ranges of addresses than the cluster's.
func (o *objects) checkRanges() error {
	var faults []error
	check := func(what, text, key string, ranges []netip.Prefix) {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return
		}
		if !slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Overlaps(prefix) }) {
			faults = append(faults, fmt.Errorf("%s is %s, which is not in %v of kedge's configuration: set %s to that of k3s", what, text, ranges, key))
		}
	}
	for _, node := range o.nodes {
		for _, cidr := range node.Spec.PodCIDRs {
			check("the range of the pods of node "+node.Name, cidr, "cluster-cidr", o.cluster.PodCIDRs())
		}
	}
	if o.api != nil {
		if address, err := netip.ParseAddr(o.api.Spec.ClusterIP); err == nil {
			check("the address of the API's Service", netip.PrefixFrom(address, address.BitLen()).String(), "service-cidr", o.cluster.ServiceCIDRs())
		}
	}
	return errors.Join(faults...)
}

// describe adds the objects to the report.
func (a *adoption) describe(o *objects) {
	for _, f := range o.found {
		switch {
		case f.reason == "":
			a.report.Objects++
		case !f.silent:
			kind := strings.ToLower(f.kind.Kind)
			if f.kind.Group != "" {
				kind += "." + f.kind.Group
			}
			a.report.LeftOut = append(a.report.LeftOut, LeftOut{kind, f.namespace, f.name, f.reason})
		}
	}
	var names []string
	for _, node := range o.nodes {
		names = append(names, node.Name)
	}
	slices.Sort(names)
	if !a.Settings.Server.DisableAgent && len(names) > 0 && !slices.Contains(names, a.node.Name) {
		a.report.note("This host will be the node %s, and the cluster has only %v. If k3s ran one of those here, set node-name to its name before the first start: its volumes and pods belong to that name", a.node.Name, names)
	}
	if len(names) > 1 {
		a.report.note("The cluster has the nodes %v. On each of the others, stop k3s with k3s-killall.sh, and start kedge agent or kedge server with --server and the token of this server. A node keeps its name by k3s's file %s", names, datadir.K3sNodePassword)
	}
}
