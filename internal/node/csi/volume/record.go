package volume

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// Kind says how a volume is kept.
type Kind string

// The kinds of volumes.
const (
	Image     Kind = "image"     // a file behind a loop device
	Quota     Kind = "quota"     // a directory with a project quota
	Directory Kind = "directory" // a directory whose size nothing enforces
)

// State says how complete a volume is.
type State string

// The states of a volume. Recover completes or undoes all except Ready.
const (
	Making   State = "making"
	Ready    State = "ready"
	Deleting State = "deleting"
)

// Volume is the record of a volume or a snapshot.
type Volume struct {
	Name string `json:"name"`
	// Snapshot marks a copy that is never mounted.
	Snapshot bool `json:"snapshot,omitempty"`
	// Base is the folder with the volume's own folder. In the file it is empty for the default
	// folder, which may be moved together with its records.
	Base  string `json:"base,omitempty"`
	Kind  Kind   `json:"kind"`
	State State  `json:"state"`
	// FSType is the file system of an image, ext4 or xfs. It is empty for a raw block volume.
	FSType string `json:"fsType,omitempty"`
	// Block is true if pods get the block device itself.
	Block bool `json:"block,omitempty"`
	// Shared is true if several pods may write to the volume at the same time.
	Shared bool `json:"shared,omitempty"`
	// Size is the size in bytes.
	Size int64 `json:"size"`
	// Needs is how many bytes a snapshot takes that is being made. Afterwards it is 0, because a
	// snapshot does not grow.
	Needs int64 `json:"needs,omitempty"`
	// Project is the number of the project quota, for the kind Quota.
	Project uint32 `json:"project,omitempty"`
	// Source is the volume or snapshot that this one was copied from.
	Source string `json:"source,omitempty"`
	// Reflinked is true if the volume shares blocks with its source. Writes to either of them
	// then take space that nothing has reserved.
	Reflinked bool      `json:"reflinked,omitempty"`
	Created   time.Time `json:"created"`
}

// Any tells whether there are volumes in a base directory.
func Any(base string) (bool, error) {
	records, err := os.ReadDir(filepath.Join(base, recordFolder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("look for volumes: %w", err)
	}
	return len(records) > 0, nil
}

// recordFolder holds the records. No volume's name begins with a dot.
const recordFolder = ".volumes"

const recordSuffix = ".json"

// RecordFile returns the path of a volume's record.
func (s *Store) RecordFile(name string) string {
	return filepath.Join(s.base, recordFolder, name+recordSuffix)
}

// load returns the record of a volume in any state, or ErrNotFound.
func (s *Store) load(name string) (*Volume, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(s.RecordFile(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", name, ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("read record of volume: %w", datadir.Explain(err))
	}
	var volume Volume
	if err := json.Unmarshal(text, &volume); err != nil || volume.Name != name {
		return nil, fmt.Errorf("the record %s is damaged (%w): repair it, or remove it and the volume's folder", s.RecordFile(name), err)
	}
	volume.Base = cmp.Or(volume.Base, s.base)
	return &volume, nil
}

// Get returns a volume or snapshot that is complete, or ErrNotFound.
func (s *Store) Get(name string) (*Volume, error) {
	volume, err := s.load(name)
	if err == nil && volume.State != Ready {
		return nil, fmt.Errorf("%s: %w", name, ErrNotFound)
	}
	return volume, err
}

// save writes a record durably, so that it survives a power cut.
func (s *Store) save(volume *Volume) error {
	if err := os.MkdirAll(filepath.Join(s.base, recordFolder), 0o700); err != nil {
		return fmt.Errorf("make storage directory: %w", datadir.Explain(noSpace(err)))
	}
	record := *volume
	if record.Base == s.base {
		record.Base = ""
	}
	text, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("write record of volume: %w", err)
	}
	return noSpace(datadir.WriteFile(s.RecordFile(volume.Name), text, 0o600))
}

// forget removes a record.
func (s *Store) forget(name string) error {
	if err := os.Remove(s.RecordFile(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove record of volume: %w", datadir.Explain(err))
	}
	return datadir.SyncFolder(filepath.Join(s.base, recordFolder))
}

// List returns all records, sorted by file name, including those of volumes that are half made or
// half removed. If there is an error, it still returns the records that could be read.
func (s *Store) List() ([]*Volume, error) {
	entries, err := os.ReadDir(filepath.Join(s.base, recordFolder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", datadir.Explain(err))
	}
	var volumes []*Volume
	var faults []error
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry.Name(), recordSuffix)
		if !ok || CheckName(name) != nil {
			continue // a record that was being written
		}
		volume, err := s.load(name)
		if errors.Is(err, ErrNotFound) {
			continue // removed meanwhile
		}
		if err != nil {
			faults = append(faults, err)
			continue
		}
		volumes = append(volumes, volume)
	}
	return volumes, errors.Join(faults...)
}
