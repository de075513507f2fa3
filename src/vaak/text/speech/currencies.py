"""Currencies by their signs and codes (ISO 4217), with their names in English as Unicode's CLDR has them."""

from __future__ import annotations

from typing import NamedTuple

from vaak.text.speech.words import table, words


class Currency(NamedTuple):
    """The names of a currency and of its hundredth, one and several."""

    one: str
    many: str
    cent: str = ""
    cents: str = ""


_SHARED = table(
    """
    dollar=dollar/dollars/cent/cents peso=peso/pesos/centavo/centavos pound=pound/pounds
    franc=franc/francs/centime/centimes dinar=dinar/dinars rupee=rupee/rupees krone=krone/kroner krona=krona/kronor
    rial=rial/rials riyal=riyal/riyals shilling=shilling/shillings dirham=dirham/dirhams
    """
)
"""Nouns that several countries share, with their hundredths."""
_NATIONAL = table(
    """
    USD=U_S:dollar CAD=Canadian:dollar AUD=Australian:dollar NZD=New_Zealand:dollar HKD=Hong_Kong:dollar
    SGD=Singapore:dollar TWD=Taiwan:dollar JMD=Jamaican:dollar TTD=Trinidad_and_Tobago:dollar BBD=Barbadian:dollar
    BMD=Bermudan:dollar BZD=Belize:dollar FJD=Fijian:dollar GYD=Guyanaese:dollar
    KYD=Cayman_Islands:dollar LRD=Liberian:dollar NAD=Namibian:dollar BND=Brunei:dollar XCD=East_Caribbean:dollar
    SRD=Surinamese:dollar ZWL=Zimbabwean:dollar SBD=Solomon_Islands:dollar MXN=Mexican:peso ARS=Argentine:peso
    CLP=Chilean:peso COP=Colombian:peso PHP=Philippine:peso UYU=Uruguayan:peso DOP=Dominican:peso
    EGP=Egyptian:pound LBP=Lebanese:pound SYP=Syrian:pound SDG=Sudanese:pound GIP=Gibraltar:pound
    FKP=Falkland_Islands:pound XAF=Central_African:franc XOF=West_African:franc XPF=Pacific:franc RWF=Rwandan:franc
    BIF=Burundian:franc CDF=Congolese:franc DJF=Djiboutian:franc GNF=Guinean:franc KMF=Comorian:franc
    KWD=Kuwaiti:dinar BHD=Bahraini:dinar JOD=Jordanian:dinar IQD=Iraqi:dinar DZD=Algerian:dinar TND=Tunisian:dinar
    LYD=Libyan:dinar RSD=Serbian:dinar PKR=Pakistani:rupee LKR=Sri_Lankan:rupee NPR=Nepalese:rupee
    MUR=Mauritian:rupee SCR=Seychellois:rupee NOK=Norwegian:krone DKK=Danish:krone SEK=Swedish:krona
    ISK=Icelandic:krona IRR=Iranian:rial OMR=Omani:rial YER=Yemeni:rial SAR=Saudi:riyal QAR=Qatari:riyal
    KES=Kenyan:shilling TZS=Tanzanian:shilling UGX=Ugandan:shilling MAD=Moroccan:dirham
    """
)
_OWN = table(
    """
    CHF=Swiss_franc/Swiss_francs/rappen/rappen AED=dirham CNY=yuan/yuan RMB=yuan/yuan PLN=zloty/zloty
    CZK=Czech_koruna/Czech_korunas HUF=forint RON=leu/lei BGN=lev/leva UAH=hryvnia RUB=ruble/rubles/kopeck/kopecks
    BYN=Belarusian_ruble TRY=lira ILS=shekel THB=baht/baht VND=dong/dong IDR=rupiah/rupiah MYR=ringgit/ringgit
    KRW=won/won KPW=North_Korean_won/North_Korean_won JPY=yen/yen MNT=tugrik KZT=tenge/tenge UZS=som/som
    KGS=som/som GEL=lari/lari AMD=dram AZN=manat/manat TMT=manat/manat ZAR=rand/rand/cent/cents NGN=naira/naira
    GHS=cedi ETB=birr/birr ZMW=kwacha/kwacha MWK=kwacha/kwacha BWP=pula/pula MZN=metical/meticals AOA=kwanza
    BRL=real/reais/centavo/centavos PEN=sol/soles BOB=boliviano VES=bolivar CRC=colon GTQ=quetzal HNL=lempira
    NIO=cordoba PAB=balboa PYG=guarani HTG=gourde ALL=lek MKD=denar BAM=mark HRK=kuna MDL=leu/lei AFN=afghani
    BDT=taka/taka BTN=ngultrum MVR=rufiyaa/rufiyaa MMK=kyat LAK=kip/kip KHR=riel PGK=kina MOP=pataca
    XAU=ounce_of_gold/ounces_of_gold DEM=German_mark FRF=French_franc ITL=Italian_lira/Italian_lire BTC=bitcoin
    ETH=ether/ether XRP=X_R_P/X_R_P USDT=tether/tether DOGE=dogecoin LTC=litecoin
    """
)
_OF_SIGNS = table(
    """
    US$=USD U.S.$=USD C$=CAD CA$=CAD CAN$=CAD A$=AUD AU$=AUD AUS$=AUD NZ$=NZD HK$=HKD S$=SGD SG$=SGD NT$=TWD J$=JMD
    TT$=TTD EC$=XCD MX$=MXN Mex$=MXN R$=BRL CN¥=CNY JP¥=JPY RM=MYR Rp=IDR Rp.=IDR KSh=KES Ksh=KES USh=UGX TSh=TZS
    Dhs=AED Dhs.=AED Dh=AED GH₵=GHS ₵=GHS Kc=CZK zl=PLN ₸=KZT ₮=MNT ₭=LAK ₾=GEL ₼=AZN ֏=AMD ₡=CRC ₲=PYG ₩=KRW ₽=RUB
    ₿=BTC ₺=TRY ₴=UAH ₫=VND ₦=NGN ₪=ILS ฿=THB ৳=BDT ៛=KHR Fr.=CHF SFr=CHF Sfr=CHF
    """
)
_AMBIGUOUS = frozenset(
    words("ALL TRY COP AMD BOB MAD PEN GEL BAM RON MOP LAK VES AOA PHP GIP MUR SOS SCR XAU SAR SDG RMB")
)
"""Codes that are words, or initials of something else; only after an amount."""
_CODES_LIKE_WORDS = frozenset(words("ALL GEL BAM SCR GIP SDG XAU BOB SOS"))


def _name(written: str) -> Currency:
    """
    >>> _name("Danish:krone").many, _name("forint").many
    ('Danish kroner', 'forints')
    """
    nation, shared, noun = written.partition(":")
    names = (
        [f"{nation} {one}" if place < 2 else one for place, one in enumerate(_SHARED[noun].split("/"))]
        if shared
        else (written.split("/"))
    )
    return Currency(*names) if len(names) > 1 else Currency(names[0], f"{names[0]}s")


DOLLAR = Currency("dollar", "dollars", "cent", "cents")
_RUPEE = Currency("rupee", "rupees", "paisa", "paise")
BY_CODE = {code: _name(written) for code, written in (_NATIONAL | _OWN).items()} | {
    "EUR": Currency("euro", "euros", "cent", "cents"),
    "GBP": Currency("pound", "pounds", "penny", "pence"),
    "INR": _RUPEE,
}
CURRENCIES = {
    "$": DOLLAR,
    "£": BY_CODE["GBP"],
    "₤": BY_CODE["GBP"],
    "€": BY_CODE["EUR"],
    "¥": BY_CODE["JPY"],
    "₹": _RUPEE,
    "₨": _RUPEE,
    "Rs.": _RUPEE,
    "Rs": _RUPEE,
    "₱": Currency("peso", "pesos"),
    "kr": Currency("krone", "kroner"),
    "S/": BY_CODE["PEN"],
    **{sign: BY_CODE[code] for sign, code in _OF_SIGNS.items()},
}
"""Codes that are read before an amount; some are read after it, too."""
CODES_BEFORE = frozenset(BY_CODE) - _AMBIGUOUS
CODES_AFTER = frozenset(BY_CODE) - _CODES_LIKE_WORDS
