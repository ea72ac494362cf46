package bench

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// packedDir is the folder of executables as they would be downloaded.
const packedDir = "build/bench/packed"

// measureSizes measures how large a download is. Compressing takes minutes, so copies that are
// newer than their executables are kept.
func (r *report) measureSizes(ctx context.Context) error {
	kedge := filepath.Join(r.repository, "bin/kedge")
	xz, err := r.pack(ctx, kedge, ".xz", packXZ)
	if err != nil {
		return err
	}
	r.set(downloadXZ, kedgeName, xz)
	for system, paths := range r.paths {
		var sum float64
		for _, path := range paths {
			packed, err := r.pack(ctx, path, ".gz", packGzip)
			if err != nil {
				return err
			}
			sum += packed
		}
		r.set(downloadGzip, system, sum)
	}
	return nil
}

// pack returns the size in bytes of an executable's compressed copy. It makes the copy if necessary.
func (r *report) pack(ctx context.Context, path, suffix string, compress func(context.Context, string, *os.File) error) (float64, error) {
	packed := filepath.Join(r.repository, packedDir, filepath.Base(path)+suffix)
	source, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	info, err := os.Stat(packed)
	if err == nil && info.ModTime().After(source.ModTime()) {
		return float64(info.Size()), nil
	}
	if err := os.MkdirAll(filepath.Dir(packed), 0o755); err != nil {
		return 0, err
	}
	part := packed + ".part"
	if err := writeFile(part, func(file *os.File) error { return compress(ctx, path, file) }); err != nil {
		return 0, err
	}
	if err := os.Rename(part, packed); err != nil {
		return 0, err
	}
	if info, err = os.Stat(packed); err != nil {
		return 0, err
	}
	return float64(info.Size()), nil
}

func packXZ(ctx context.Context, path string, to *os.File) error {
	cmd := exec.CommandContext(ctx, "xz", "-9", "--stdout", path)
	cmd.Stdout = to
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("xz, of the package xz-utils: %w", err)
	}
	return nil
}

func packGzip(_ context.Context, path string, to *os.File) error {
	source, err := os.Open(path)
	if err != nil {
		return err
	}
	defer source.Close()
	packer, err := gzip.NewWriterLevel(to, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := io.Copy(packer, source); err != nil {
		return err
	}
	return packer.Close()
}
