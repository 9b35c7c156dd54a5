# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Codes of languages: the shortest of each, by which libraries name its rules."""

import re

# ISO 639-1 codes, each with its codes of three letters: those of ISO 639-2 and 639-3, and of the
# variety that stands for the language
_SHORT_CODES = """
    aa:aar ab:abk ae:ave af:afr ak:aka,twi am:amh an:arg ar:ara,arb as:asm av:ava ay:aym,ayr
    az:aze,azj ba:bak be:bel bg:bul bi:bis bm:bam bn:ben bo:bod,tib br:bre bs:bos ca:cat ce:che
    ch:cha co:cos cr:cre,cwd cs:ces,cze cu:chu cv:chv cy:cym,wel da:dan de:deu,ger dv:div
    dz:adp,dzo ee:ewe el:ell,gre en:eng eo:epo es:spa et:ekk,est eu:baq,eus
    fa:drw,fas,per,pes,prs,tnf ff:fuc,ful fi:fin fj:fij fo:fao fr:fra,fre fy:fry ga:gle gd:gla
    gl:glg gn:grn,gug gu:guj,prp gv:glv ha:hau he:heb hi:hin ho:hmo hr:hrv,scr ht:hat hu:hun
    hy:arm,hye hz:her ia:ina id:ind ie:ile ig:ibo ii:iii ik:esk,ipk io:ido is:ice,isl it:ita
    iu:ike,iku ja:jpn jv:jav ka:geo,kat kg:kng,kon ki:kik kj:kua kk:kaz kl:kal km:khm kn:kan
    ko:kor kr:kau,knc ks:kas ku:kmr,kur kv:kom,kpv kw:cor ky:kir la:lat lb:ltz lg:lug li:lim
    ln:lin lo:lao lt:lit lu:lub lv:lav,lvs mg:mlg,plt mh:mah mi:mao,mri mk:mac,mkd ml:mal
    mn:drh,khk,mon mr:mar ms:may,msa,zsm mt:mlt my:bur,mya na:nau nb:nob nd:nde ne:nep,npi ng:ndo
    nl:dut,nld nn:nno no:nor nr:nbl nv:nav ny:nya oc:oci oj:ojg,oji om:gaz,orm or:ori,ory os:oss
    pa:pan pi:pli pl:pol ps:pbu,pus pt:por qu:que,quz rm:roh rn:run ro:mol,ron,rum ru:rus rw:kin
    sa:cls,san sc:src,srd sd:snd se:sme sg:sag si:sin sk:slk,slo sl:slv sm:smo sn:sna so:som
    sq:alb,als,sqi sr:cnr,hbs,scc,srp ss:ssw st:sot su:sun sv:swe sw:swa,swc,swh ta:tam te:tel
    tg:tgk th:tha ti:tir tk:tuk tn:tsn to:ton tr:tur ts:tso tt:tat ty:tah ug:uig uk:ukr ur:urd
    uz:uzb,uzn ve:ven vi:vie vo:vol wa:wln wo:wol xh:xho yi:ydd,yid yo:yor za:zha,zyb
    zh:chi,cmn,zho zu:zul
"""
_SHORT_BY_LONG: dict[str, str] = {}
for _codes in _SHORT_CODES.split():
    _short, _, _long_codes = _codes.partition(":")
    _SHORT_BY_LONG |= dict.fromkeys(_long_codes.split(","), _short)


def base_language(language: str) -> str:
    """Returns the shortest code of a language, without script and country: "de" for "deu_Latn"; a
    code that is not known stays.
    """
    code = re.split(r"[_-]", language)[0].lower()
    return _SHORT_BY_LONG.get(code, code)
