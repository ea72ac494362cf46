package backup

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/kedge-dev/kedge/internal/datastore/backup/records"
)

// fingerprint tells whether a file has changed.
type fingerprint struct {
	mode os.FileMode
	sum  [sha256.Size]byte
}

func fingerprintOf(file records.File) fingerprint {
	return fingerprint{file.Mode, sha256.Sum256(file.Content)}
}

// addFiles adds the files that have changed since they were last written.
func (s *session) addFiles(b *batch) error {
	now, err := s.cfg.Files()
	if err != nil {
		return fmt.Errorf("read files for the backup: %w", err)
	}
	gone := maps.Clone(s.files)
	for _, file := range now {
		before, known := s.files[file.Name]
		delete(gone, file.Name)
		if !known || before != fingerprintOf(file) {
			b.files = append(b.files, file)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(gone)) {
		b.files = append(b.files, records.File{Name: name, Gone: true})
	}
	for _, file := range b.files {
		if b.content, err = records.AppendFile(b.content, file); err != nil {
			return err
		}
	}
	return nil
}

// remember notes files that are in the backup now.
func (s *session) remember(files []records.File) {
	for _, file := range files {
		if file.Gone {
			delete(s.files, file.Name)
		} else {
			s.files[file.Name] = fingerprintOf(file)
		}
	}
}
