package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/kedge-dev/kedge/internal/node/csi/volume"
)

// Has tells whether a volume is complete on this node.
func (d *Driver) Has(name string) (bool, error) {
	_, err := d.store.Get(name)
	if errors.Is(err, volume.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Describe describes a volume, so that Import can make it anew.
func (d *Driver) Describe(name string) (json.RawMessage, error) {
	content, err := d.store.Describe(name)
	if err != nil {
		return nil, err
	}
	return json.Marshal(content)
}

// Export writes the contents of a volume to w, as a tar archive. around calls the function that fixes the contents.
func (d *Driver) Export(ctx context.Context, name string, w io.Writer, around func(do func() error) error) error {
	return d.store.Export(ctx, name, w, around)
}

// Import makes a volume of an export. Meanwhile the kubelet hears how far it is, and tells the volume's pods. size is that of the archive in bytes, and
// at the time of which it is.
func (d *Driver) Import(ctx context.Context, name string, about json.RawMessage, at time.Time, size int64, archive io.Reader) error {
	var content volume.Content
	if err := json.Unmarshal(about, &content); err != nil {
		return fmt.Errorf("read the description of volume %s: %w", name, err)
	}
	p := &progress{Reader: archive, began: time.Now(), of: at, size: size}
	d.coming.Store(name, p)
	defer d.coming.Delete(name)
	_, err := d.store.Import(ctx, name, content, p)
	return err
}

// Await makes the kubelet hear that the contents of a volume come, although they have not begun to. fault says why they have not, or is nil.
func (d *Driver) Await(name string, at time.Time, fault error) {
	p := &progress{of: at, fault: fault}
	if fault != nil {
		d.coming.Store(name, p)
	} else {
		d.coming.LoadOrStore(name, p)
	}
}

// Forget undoes Await.
func (d *Driver) Forget(name string) { d.coming.Delete(name) }
