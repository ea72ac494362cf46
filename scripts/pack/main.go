// Command pack makes the archive of helpers that internal/base/assets embeds, and
// prints the sizes. The same files give the same bytes.
//
//	pack build/bundle internal/base/assets/embedded
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"

	"github.com/kedge-dev/kedge/internal/base/assets"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: pack FOLDER OUTPUT-FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func run(folder, out string) error {
	var archive bytes.Buffer
	// Only one thread is used: with several, the ends of blocks depend on timing.
	compressed, err := zstd.NewWriter(&archive, zstd.WithEncoderLevel(zstd.SpeedBestCompression),
		zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(assets.WindowSize))
	if err != nil {
		return err
	}
	w := tar.NewWriter(compressed)
	var manifest assets.Manifest
	var unpacked int64
	paths, err := list(folder)
	if err != nil {
		return err
	}
	for _, path := range paths {
		file, err := add(w, folder, path)
		if err != nil {
			return fmt.Errorf("add %s: %w", path, err)
		}
		manifest.Files = append(manifest.Files, file)
		unpacked += file.Size
		if file.Size >= 1<<20 {
			fmt.Printf("%8.1f MB  %s\n", megabytes(file.Size), file.Path)
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := compressed.Close(); err != nil {
		return err
	}
	sum := sha256.Sum256(archive.Bytes())
	manifest.SHA256 = hex.EncodeToString(sum[:])
	text, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	// The manifest is written last: without it the archive counts as missing.
	if err := os.WriteFile(filepath.Join(out, assets.ArchiveName), archive.Bytes(), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, assets.ManifestName), text, 0o644); err != nil {
		return err
	}
	fmt.Printf("%8.1f MB  in %d files, %.1f MB compressed\n", megabytes(unpacked), len(manifest.Files), megabytes(int64(archive.Len())))
	return nil
}

func megabytes(bytes int64) float64 { return float64(bytes) / 1e6 }

// list returns the paths of all files in folder, relative to it: the tools last.
func list(folder string) ([]string, error) {
	var helpers, tools []string
	err := fs.WalkDir(os.DirFS(folder), ".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || entry.IsDir():
			return err
		case assets.IsTool(path):
			tools = append(tools, path)
		default:
			helpers = append(helpers, path)
		}
		return nil
	})
	return append(helpers, tools...), err
}

func add(w *tar.Writer, folder, name string) (assets.File, error) {
	path := filepath.Join(folder, filepath.FromSlash(name))
	file := assets.File{Path: name}
	info, err := os.Lstat(path)
	if err != nil {
		return file, err
	}
	header := &tar.Header{Name: file.Path, ModTime: assets.ModTime, Format: tar.FormatUSTAR}
	if info.Mode().Type() == fs.ModeSymlink {
		if file.Link, err = os.Readlink(path); err != nil {
			return file, err
		}
		header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, file.Link, 0o777
		return file, w.WriteHeader(header)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return file, err
	}
	file.Size, file.Executable = int64(len(data)), info.Mode()&0o111 != 0
	header.Typeflag, header.Size, header.Mode = tar.TypeReg, file.Size, int64(file.Mode())
	if err := w.WriteHeader(header); err != nil {
		return file, err
	}
	_, err = w.Write(data)
	return file, err
}
