package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/util/keyutil"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// Replacing the authorities takes two steps. Each step is prepared in a folder of its
// own. The next start makes a copy of the folder of certificates, puts the prepared files
// into the copy, and puts the copy in the place of the folder. If that is interrupted,
// either the old folder or the new one is there.
//
// After the first step the new authorities sign, and the old ones are still trusted.
// FILE.crt then has three certificates: the new authority's, signed by the old one, which
// goes along with each leaf; the old authority's; and the new authority's, signed by
// itself. So everybody trusts everybody, whether they have taken the step or not. The
// second step removes the old authorities.

// replaced are the authorities, by the names of their files. Those of etcd exist only on
// servers with etcd.
var replaced = []string{"server-ca", "client-ca", "request-header-ca", "etcd/server-ca", "etcd/peer-ca"}

// serviceAccountKey is the name of a file. After the first step it also has the public
// half of the old key.
const serviceAccountKey = "service.key"

// ErrPrepared says that a step is already prepared and waits for the next start.
var ErrPrepared = errors.New("new certificate authorities are prepared already: restart this server to use them")

// PrepareAuthorities prepares the first step on a single server.
func PrepareAuthorities(dir datadir.Dir, now time.Time) error {
	files, err := NextAuthorities(dir, now)
	if err != nil {
		return err
	}
	return prepare(dir, files)
}

// DropAuthorities prepares the second step on a single server.
func DropAuthorities(dir datadir.Dir) error {
	files, err := LastAuthorities(dir)
	if err != nil {
		return err
	}
	return prepare(dir, files)
}

// NextAuthorities returns the files that the first step puts into the folder of
// certificates, by their paths in there.
func NextAuthorities(dir datadir.Dir, now time.Time) (map[string][]byte, error) {
	files := map[string][]byte{}
	return files, step(dir, func(name string) error { return succeed(dir.ServerTLS(), name, now, files) }, func(key crypto.Signer) error {
		return succeedKey(key, files)
	})
}

// LastAuthorities returns the files that the second step puts there, in the same form.
func LastAuthorities(dir datadir.Dir) (map[string][]byte, error) {
	files := map[string][]byte{}
	return files, step(dir, func(name string) error {
		path := filepath.Join(dir.ServerTLS(), name)
		bundle, err := readCertificates(path + ".crt")
		if err != nil {
			return err
		}
		own := successor(bundle)
		switch {
		case own != nil:
		case name == "server-ca":
			return fmt.Errorf("%s.crt has no authority that replaces another: run `kedge certificate rotate-ca` first", path)
		default:
			return nil // this etcd was added after the first step
		}
		files[name+".crt"] = encodeCertificates(own)
		files[name+".key"], err = os.ReadFile(path + ".key")
		return err
	}, func(key crypto.Signer) (err error) {
		files[serviceAccountKey], err = keyutil.MarshalPrivateKeyToPEM(key)
		return err
	})
}

// step calls authority for each authority that is on this server, and then account with
// the key of service accounts.
func step(dir datadir.Dir, authority func(name string) error, account func(crypto.Signer) error) error {
	if _, err := os.Stat(dir.NextServerTLS()); err == nil {
		return ErrPrepared
	}
	for _, name := range replaced {
		if _, err := os.Stat(filepath.Join(dir.ServerTLS(), name+".crt")); errors.Is(err, fs.ErrNotExist) && filepath.Dir(name) != "." {
			continue
		}
		if err := authority(name); err != nil {
			return fmt.Errorf("prepare authorities: %w", err)
		}
	}
	key, err := readKey(filepath.Join(dir.ServerTLS(), serviceAccountKey))
	if err == nil {
		err = account(key)
	}
	if err != nil {
		return fmt.Errorf("prepare the key of service accounts: %w", err)
	}
	return nil
}

// prepare keeps files for the next start. They replace the files that were kept before.
func prepare(dir datadir.Dir, files map[string][]byte) error {
	err := os.RemoveAll(dir.NextServerTLS())
	if err == nil {
		err = makeFolder(dir.NextServerTLS(), func(to string) error {
			for name, content := range files {
				path := filepath.Join(to, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					return err
				}
				if err := datadir.WriteFile(path, content, keyMode); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("prepare authorities: %w", datadir.Explain(err))
	}
	return nil
}

// makeFolder makes a folder that do fills. The folder appears only when it is complete.
func makeFolder(path string, do func(to string) error) error {
	making := path + ".tmp"
	if err := os.RemoveAll(making); err != nil {
		return err
	}
	err := os.Mkdir(making, 0o700)
	if err == nil {
		err = do(making)
	}
	if err == nil {
		err = datadir.SyncAll(making)
	}
	if err == nil {
		err = os.Rename(making, path)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(making))
	}
	return datadir.SyncFolder(filepath.Dir(path))
}

// copyFolder copies files with their modes, and overwrites those that are there.
func copyFolder(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return os.MkdirAll(filepath.Join(to, name), 0o700)
		}
		info, err := os.Stat(path) // of the file, if this is a symbolic link
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return datadir.WriteFile(filepath.Join(to, name), content, info.Mode().Perm())
	})
}

// succeed makes a new authority that replaces the one with that name, and adds its files.
func succeed(folder, name string, now time.Time, files map[string][]byte) error {
	path := filepath.Join(folder, name)
	bundle, err := readCertificates(path + ".crt")
	if err != nil {
		return err
	}
	key, err := readKey(path + ".key")
	if err != nil {
		return err
	}
	old := bundle[0]
	switch {
	case successor(bundle) != nil:
		return fmt.Errorf("%s.crt replaces another authority already: finish that first with `kedge certificate rotate-ca --finish`", path)
	case len(bundle) > 1 || old.CheckSignatureFrom(old) != nil || old.MaxPathLen == 0 && old.MaxPathLenZero:
		return fmt.Errorf("kedge cannot replace %s.crt, an authority of your own: another authority has signed it, or it may not sign other authorities", path)
	}
	a := &authority{certFile: path + ".crt"}
	if a.key, err = ecdsaKey(); err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	if err := a.make("kedge-"+strings.ReplaceAll(name, "/", "-"), now); err != nil {
		return err
	}
	crossed, err := cross(a.cert(), old, key)
	if err != nil {
		return fmt.Errorf("sign %s by the old authority: %w", a.certFile, err)
	}
	files[name+".crt"] = encodeCertificates(crossed, old, a.cert())
	files[name+".key"], err = keyutil.MarshalPrivateKeyToPEM(a.key)
	return err
}

// cross returns an authority's certificate, signed by another authority.
func cross(cert, signer *x509.Certificate, key crypto.Signer) (*x509.Certificate, error) {
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	template := *cert
	template.SerialNumber = serial
	template.AuthorityKeyId = nil // the signer's
	der, err := x509.CreateCertificate(rand.Reader, &template, signer, cert.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// successor returns the authority that signs now, in the certificate that it signed
// itself. It returns nil unless the bundle is from between the two steps.
func successor(bundle []*x509.Certificate) *x509.Certificate {
	if bundle[0].CheckSignatureFrom(bundle[0]) == nil {
		return nil
	}
	for _, cert := range bundle[1:] {
		if cert.CheckSignatureFrom(cert) == nil && string(cert.RawSubjectPublicKeyInfo) == string(bundle[0].RawSubjectPublicKeyInfo) {
			return cert
		}
	}
	return nil
}

// succeedKey makes the file of a new key. Tokens signed by the old key stay valid.
func succeedKey(old crypto.Signer, files map[string][]byte) error {
	public, err := x509.MarshalPKIXPublicKey(old.Public())
	if err != nil {
		return fmt.Errorf("encode key: %w", err)
	}
	key, err := rsaKey()
	if err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	text, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return fmt.Errorf("encode key: %w", err)
	}
	files[serviceAccountKey] = append(text, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})...)
	return nil
}

// TakeAuthorities completes a step that was prepared, if there is one. The caller must do
// that before anything reads or writes the certificates.
func TakeAuthorities(dir datadir.Dir, now time.Time) error {
	next, whole := dir.NextServerTLS(), dir.NextServerTLS()+"-whole"
	if _, err := os.Stat(next); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, err := os.Stat(whole); errors.Is(err, fs.ErrNotExist) {
		if wanted, err := wants(dir); err != nil {
			return err
		} else if !wanted {
			return os.RemoveAll(next)
		}
		// The folder kept by the rotation before is no longer needed.
		err := os.RemoveAll(dir.PreviousServerTLS())
		if err == nil {
			err = makeFolder(whole, func(to string) error {
				// All other files as they are now: they may have changed since the step
				// was prepared.
				err := errors.Join(copyFolder(dir.ServerTLS(), to), copyFolder(next, to))
				for _, name := range replaced {
					_ = os.Remove(filepath.Join(to, name+"-signer.crt")) // written again if it is needed
				}
				// RotatedAt reads this time.
				return errors.Join(err, os.Chtimes(filepath.Join(to, "server-ca.crt"), now, now))
			})
		}
		if err != nil {
			return fmt.Errorf("take new authorities: %w", datadir.Explain(err))
		}
	}
	if err := datadir.Replace(whole, dir.ServerTLS(), dir.PreviousServerTLS()); err != nil {
		return err
	}
	logrus.WithField("component", "pki").Infof("New certificate authorities are in use. The former ones are kept in %s", dir.PreviousServerTLS())
	return os.RemoveAll(next)
}

// wants tells whether the prepared authorities follow those that are here, and have not
// been taken yet.
func wants(dir datadir.Dir) (bool, error) {
	theirs, err := readCertificates(filepath.Join(dir.NextServerTLS(), "server-ca.crt"))
	if err != nil {
		return false, err
	}
	own, err := readCertificates(filepath.Join(dir.ServerTLS(), "server-ca.crt"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if slices.EqualFunc(own, theirs, (*x509.Certificate).Equal) {
		return false, nil
	}
	if !related(own, theirs) {
		logrus.WithField("component", "pki").Warnf("The certificate authorities prepared in %s do not follow the current ones, which may be from a snapshot. Removing the prepared ones", dir.NextServerTLS())
		return false, nil
	}
	return true, nil
}

// related tells whether one of two bundles replaces the other: bundles that follow each
// other have a certificate in common.
func related(one, other []*x509.Certificate) bool {
	return slices.ContainsFunc(one, func(cert *x509.Certificate) bool { return slices.ContainsFunc(other, cert.Equal) })
}
