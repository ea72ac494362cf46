package snapshot

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/datastore"
)

// Source is a state that does not come from the datastore of this server.
type Source struct {
	// Kedge is the version that kept it, and Node the server.
	Kedge, Node string
	Time        time.Time
	// Secrets are what ReadSecrets has returned there, and Token is the server's token.
	Secrets map[string][]byte
	Token   string
	// Export returns the objects.
	Export datastore.Export
}

// Assemble makes a snapshot at path, of a state that does not come from the datastore. Restore takes it like any other.
func Assemble(ctx context.Context, cfg Config, path string, s Source) error {
	token, err := join.ServerSecret(s.Token)
	if err != nil {
		return err
	}
	err = cfg.pack(path, &Manifest{Kedge: s.Kedge, Name: "backup", Node: s.Node, Time: s.Time}, s.Secrets, token, func(content string) (revision int64, err error) {
		counted := func(ctx context.Context, each func(*mvccpb.Event) error) (int64, int64, error) {
			var compacted int64
			revision, compacted, err = s.Export(ctx, each)
			return revision, compacted, err
		}
		err = cfg.Store.Convert(ctx, counted, content)
		return revision, err
	})
	if err != nil {
		return fmt.Errorf("make a snapshot of the backup: %w", err)
	}
	return nil
}

// ReadSecrets returns the files without which the content of a datastore is useless, by name. encryption is the path of the API server's
// encryption-provider-config, or empty if it has none.
func ReadSecrets(dir datadir.Dir, encryption string) (map[string][]byte, error) {
	return readSecrets(dir, encryption)
}
